"""The view that drops the tokens of a vision transformer that hold no kept pixel.

Attention takes any set of tokens, and each carries its position embedding, so tokens without a kept pixel are
neither embedded nor computed. Hidden pixels inside a token that is kept in part are 0 after normalisation.
With every token kept this is the dense model.

Written against timm's parts, because timm drops tokens only at random (`PatchDropout`), not by choice.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from costcert.errors import CostcertError
from costcert.geometry.ablations import Kept, Region
from costcert.geometry.sizes import ImageSize
from costcert.models.torchvision_repair import import_timm
from costcert.models.views import View, kept, visible


class Tokens(NamedTuple):
    """The kept tokens of M mutants, K per mutant.

    strips: [M, C, p, K * q], their pixels, side by side.
    places: [M, K], their indices in the token grid, in row-major order.
    """

    strips: Tensor
    places: Tensor


class DropTokens(View):
    """Inputs of a timm VisionTransformer with only the tokens that hold a kept pixel."""

    hide = "drop-tokens"

    def __init__(self, network: nn.Module, image_size: ImageSize, name: str = "this model") -> None:
        timm = import_timm()
        embed: Any = getattr(network, "patch_embed", None)
        if not isinstance(network, timm.models.vision_transformer.VisionTransformer):
            raise CostcertError(
                f"drop-tokens needs a ViT (timm's VisionTransformer); {name} is a {type(network).__name__}: "
                "hide pixels as zero, or as crop for a convolutional model"
            )
        if type(embed) is not timm.layers.PatchEmbed:
            raise CostcertError(
                f"drop-tokens needs tokens that depend on their own patch alone; {name} makes them with a "
                f"{type(embed).__name__}: hide pixels as zero"
            )
        self.image_size = image_size
        self._patch: ImageSize = embed.patch_size
        self._grid: ImageSize = embed.dynamic_feat_size(image_size)
        self._places: dict[Kept, Tensor] = {}

    def places(self, region: Kept) -> Tensor:
        """[K], the indices of tokens that hold a kept pixel, in row-major order."""
        if region not in self._places:
            shown = self._patches(torch.from_numpy(region.pixels(self.image_size))[None, None])
            found = shown[0].flatten(1).any(dim=1).nonzero().flatten()
            # Where the patch size does not divide the side, timm leaves out a border. A mutant that keeps
            # nothing but this border gets one token, completely hidden.
            self._places[region] = found if len(found) else torch.zeros(1, dtype=torch.int64)
        return self._places[region]

    def _by_token(self, values: Tensor, axis: int) -> Tensor:
        """Splits the last dimension, pixels along an axis, into [tokens, pixels per token]."""
        count, length = self._grid[axis], self._patch[axis]
        # A negative padding cuts off.
        padded = functional.pad(values, (0, count * length - values.shape[-1]))
        return padded.reshape(*values.shape[:-1], count, length)

    def group(self, region: Kept) -> Hashable:
        return len(self.places(region))

    def area(self, region: Kept) -> int:
        return len(self.places(region)) * self._patch[0] * self._patch[1]

    def inputs(self, pixels: Tensor, images: Tensor, regions: Sequence[Kept]) -> Tokens:
        device = pixels.device
        places = torch.stack([self.places(region) for region in regions]).to(device)
        patches = self._patches(pixels)[images[:, None], places]
        masked = torch.where(self._shown(regions, places)[:, :, None], patches, 0)
        return Tokens(masked.permute(0, 2, 3, 1, 4).flatten(3), places)

    def _patches(self, pixels: Tensor) -> Tensor:
        """[N, tokens, C, p, q], the pixels [N, C, H, W] of each token."""
        by_columns = self._by_token(pixels, 1)
        by_both = self._by_token(by_columns.movedim(2, -1), 0)
        return by_both.permute(0, 4, 2, 1, 5, 3).flatten(1, 2)

    def _shown(self, regions: Sequence[Kept], places: Tensor) -> Tensor:
        """[M, K, p, q], true where a mutant shows a pixel of a token."""
        device = places.device
        mutants = torch.arange(len(regions), device=device)[:, None]
        strips = [region for region in regions if isinstance(region, Region)]
        if not strips:
            whole = visible(regions, self.image_size, device)[:, None]
            return self._patches(whole)[mutants, places][:, :, 0]
        down, across = places // self._grid[1], places % self._grid[1]
        rows = self._by_token(kept([region.rows for region in strips], self.image_size[0], device), 0)
        columns = self._by_token(kept([region.columns for region in strips], self.image_size[1], device), 1)
        return rows[mutants, down][..., :, None] & columns[mutants, across][..., None, :]

    def forward(self, network: nn.Module, inputs: Tokens) -> Tensor:
        """`VisionTransformer.forward` from the patch embedding on, for the kept tokens."""
        vit: Any = network
        strips, places = inputs
        embedded = vit.patch_embed.norm(vit.patch_embed.proj(strips).flatten(2).transpose(1, 2))
        # Position embeddings are added, so adding them to zeros gives them (after class and register tokens).
        grid = self._grid if vit.dynamic_img_size else (self._grid[0] * self._grid[1],)
        table = vit._pos_embed(embedded.new_zeros(1, *grid, embedded.shape[-1]))[0]
        prefix, positions = table[: vit.num_prefix_tokens], table[vit.num_prefix_tokens :]
        tokens = torch.cat([prefix.expand(len(places), -1, -1), embedded + positions[places]], dim=1)
        tokens = _run_blocks(vit, vit.norm_pre(vit.patch_drop(tokens)))
        logits: Tensor = vit.forward_head(vit.norm(tokens))
        return logits


def _run_blocks(vit: Any, tokens: Tensor) -> Any:
    """The output tokens of the last block; only the class token where the head reads no other."""
    if vit.grad_checkpointing and vit.training:
        return import_timm().models.checkpoint_seq(vit.blocks, tokens)
    if vit.training or not _reads_class_token(vit):
        return vit.blocks(tokens)
    *earlier, last = vit.blocks
    for block in earlier:
        tokens = block(tokens)
    # The last block computes the class token alone, the only one that the head reads.
    first = tokens[:, :1] + last.ls1(_attention_of_first(last.attn, last.norm1(tokens)))
    return first + last.ls2(last.mlp(last.norm2(first)))


def _reads_class_token(vit: Any) -> bool:
    """Whether the head reads the class token alone, and the last block has none of timm's newer options."""
    transformer = import_timm().models.vision_transformer
    last = vit.blocks[-1]
    if type(vit) is not transformer.VisionTransformer or vit.global_pool != "token":
        return False
    if type(last) is not transformer.Block or type(last.attn) is not transformer.Attention:
        return False
    additions = (getattr(last.attn, name, None) for name in ("q_norm", "k_norm", "norm", "gate"))
    return last.attn.qkv.bias is not None and all(isinstance(part, nn.Identity | None) for part in additions)


def _attention_of_first(attention: Any, tokens: Tensor) -> Tensor:
    """The attention output of the first of `tokens` [N, T, D], without keys and values of the others.

    The product of its query q with a key W t + b is (qW) t + qb, where qb is the same for all tokens and
    cancels in the softmax. The weights add up to one, so the weighted mean of values is the value of the
    weighted mean of tokens.
    """
    per_head = (3, attention.num_heads, -1)
    weights = attention.qkv.weight.unflatten(0, per_head)
    bias = attention.qkv.bias.unflatten(0, per_head)[:, :, None]
    first = tokens[:, 0].expand(attention.num_heads, -1, -1)
    query = (first @ weights[0].mT + bias[0]) * attention.scale
    projected = (query @ weights[1]).transpose(0, 1)
    shares = (projected @ tokens.mT).softmax(dim=-1)
    value = (shares @ tokens).transpose(0, 1) @ weights[2].mT + bias[2]
    output: Tensor = attention.proj(value.transpose(0, 1).flatten(1)[:, None])
    return output
