"""Small random worlds: an image, mutants, a patch and votes, each for the library and for its naive twin."""

from functools import cached_property
from random import Random
from typing import NamedTuple

import numpy as np
from hypothesis import assume, settings
from hypothesis import strategies as st

import costcert as cc
import naive

TIES = ("against", "lowest")
ties = st.sampled_from(TIES)
few = st.integers(2, 4)


def examples(count):
    """The number of examples for a test that takes `count` in the profile `ci`, scaled to the current one."""
    scaled = count * settings.default.max_examples // settings.get_profile("ci").max_examples
    return max(scaled, min(count, 5))


class Scene:
    """An image, what the mutants keep and what the attacker covers."""

    def __init__(self, image_size, families, patch, pixels, times=1):
        self.image_size = image_size
        self.families = families
        self.patch = patch
        self.pixels = pixels
        self.times = times

    def __repr__(self):
        return f"Scene({self.ablation} on {self.image_size}, {self.patch})"

    @property
    def ablation(self):
        return ablation(self.families)

    @cached_property
    def mutants(self):
        """Kept pixels of every mutant."""
        return naive.kept(self.families, *self.image_size)

    @cached_property
    def sets(self):
        """Every distinct T_p."""
        places = naive.places(self.pixels, *self.image_size, self.times)
        return naive.distinct(naive.touched(self.mutants, place) for place in places)

    @cached_property
    def windows(self):
        """Every maximal T_p."""
        return naive.maximal(self.sets)

    @property
    def most(self):
        """Δ."""
        return max(len(attacked) for attacked in self.sets)


class Election(NamedTuple):
    """Ballots of some images: `labels[n][i]` of `units[n][i]`, lists where the ballots are soft."""

    scene: Scene
    labels: list
    truth: list
    num_classes: int
    units: list | None = None
    cap: int = 1

    @property
    def images(self):
        return range(len(self.truth))

    def ballots(self, image):
        """The ballots of one image as the naive twin takes them."""
        if self.units is None:
            return naive.hard(self.labels[image])
        result = []
        for labels, units in zip(self.labels[image], self.units[image], strict=True):
            ballot = {}
            for label, given in zip(labels, units, strict=True):
                ballot[label] = ballot.get(label, 0) + given
            result.append(ballot)
        return result

    def votes(self):
        """The ballots as the library takes them."""
        world = {
            "num_classes": self.num_classes,
            "ablation": self.scene.ablation,
            "image_size": self.scene.image_size,
        }
        if self.units is None:
            return cc.Votes(self.labels, self.truth, **world)
        return cc.Votes.soft(self.labels, self.units, self.truth, cap=self.cap, **world)


def ablation(families):
    """The library's name for some families."""
    kinds = {"columns": cc.Columns, "rows": cc.Rows, "blocks": cc.Blocks}
    made = [kinds[f.kind](f.width, stride=f.stride, wrap=f.wrap, span=f.span) for f in families]
    return made[0] if len(made) == 1 else cc.Pooled(*made)


def placed(scene, corners):
    """The pixels that the scene's patches cover with their top left corners there."""
    top, left = min(y for y, _ in scene.pixels), min(x for _, x in scene.pixels)
    return frozenset(
        (y - top + int(down), x - left + int(right)) for down, right in corners for y, x in scene.pixels
    )


@st.composite
def families(draw, image_size, kinds=("columns", "rows", "blocks")):
    """One family of mutants that fits the image."""
    kind = draw(st.sampled_from(kinds))
    height, width = image_size
    side = {"columns": width, "rows": height, "blocks": min(height, width)}[kind]
    kept = draw(st.integers(1, side))
    wrap = draw(st.booleans())
    last = side - 1 if wrap else side - kept
    span = None
    if draw(st.booleans()):
        first = draw(st.integers(0, last))
        span = (first, draw(st.integers(first, last)))
    return naive.Strips(kind, kept, draw(st.integers(1, 3)), wrap, span)


@st.composite
def patches(draw, image_size):
    """A patch that fits the image: the library's value, its pixels and how many there are at once."""
    height, width = image_size
    kind = draw(st.sampled_from(["square", "rectangle", "shape", "several"]))
    if kind == "square":
        side = draw(st.integers(1, min(height, width)))
        patch, pixels = cc.Square(side), naive.rectangle(side, side)
    elif kind == "rectangle":
        sides = draw(st.integers(1, height)), draw(st.integers(1, width))
        patch, pixels = cc.Rectangle(*sides), naive.rectangle(*sides)
    else:
        rows, columns = draw(st.integers(1, min(3, height))), draw(st.integers(1, min(4, width)))
        row = st.lists(st.booleans(), min_size=columns, max_size=columns)
        mask = draw(st.lists(row, min_size=rows, max_size=rows).filter(lambda mask: any(map(any, mask))))
        patch, pixels = cc.Shape(mask), naive.shape(mask)
    if kind == "several":
        times = draw(st.integers(1, 3 if height * width <= 12 else 2))
        return cc.Several(patch, times), pixels, times
    return patch, pixels, 1


@st.composite
def scenes(draw, largest_side=7, most_touched=None, kinds=("columns", "rows", "blocks"), most_families=2):
    """A world. `most_touched` bounds Δ, so that all attacks can be tried."""
    side = st.integers(1, largest_side)
    image_size = draw(side), draw(side)
    pooled = draw(st.integers(1, most_families))
    chosen = [draw(families(image_size, kinds)) for _ in range(pooled)]
    scene = Scene(image_size, chosen, *draw(patches(image_size)))
    assume(most_touched is None or scene.most <= most_touched)
    return scene


@st.composite
def elections(draw, scene_strategy, num_classes=few, most_images=4):
    """Hard votes in which one label is more or less of a favourite, and often the true one."""
    scene = draw(scene_strategy)
    classes = draw(num_classes)
    size = len(scene.mutants)
    labels, truth = [], []
    for _ in range(draw(st.integers(1, most_images))):
        favourite = draw(st.integers(0, classes - 1))
        weight = draw(st.sampled_from([0, 2, 8]))
        others = draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=5, unique=True))
        label = st.sampled_from([favourite] * weight + others)
        labels.append(draw(st.lists(label, min_size=size, max_size=size)))
        truth.append(draw(st.sampled_from([favourite, favourite, *range(classes)])))
    return Election(scene, labels, truth, classes)


@st.composite
def soft_elections(draw, scene_strategy, num_classes=few, largest_cap=3, most_images=2):
    """Soft votes: each mutant spreads at most `cap` units over `j` different labels."""
    scene = draw(scene_strategy)
    classes = draw(num_classes)
    cap = draw(st.integers(1, largest_cap))
    kept = draw(st.integers(1, classes))
    labels, units, truth = [], [], []
    for _ in range(draw(st.integers(1, most_images))):
        favourite = draw(st.integers(0, classes - 1))
        generous = draw(st.booleans())
        image_labels, image_units = [], []
        for _ in scene.mutants:
            mutant_labels = draw(st.permutations(range(classes)))[:kept]
            if generous and favourite in mutant_labels:
                mutant_labels.remove(favourite)
                mutant_labels.insert(0, favourite)
            left, given_units = cap, []
            for _ in range(kept):
                given = draw(st.integers(min(left, cap // 2) if generous and not given_units else 0, left))
                given_units.append(given)
                left -= given
            image_labels.append(mutant_labels)
            image_units.append(given_units)
        labels.append(image_labels)
        units.append(image_units)
        truth.append(draw(st.sampled_from([favourite, favourite, *range(classes)])))
    return Election(scene, labels, truth, classes, units, cap)


@st.composite
def long_elections(draw, soft=False, most_classes=30, most_mutants=45):
    """Dozens of mutants along an axis, whose ballots come in runs as neighbours see much the same.

    Some pixels are kept by many more mutants than others, so that budgets rise and fall along the axis.
    """
    length = draw(st.integers(15, most_mutants))
    kept = draw(st.integers(1, length // 3))
    family = naive.Strips("columns", kept, draw(st.integers(1, 2)), draw(st.booleans()))
    mask = [[True, *draw(st.lists(st.booleans(), max_size=length // 4))]]
    random = Random(draw(st.integers(0, 2**32 - 1)))
    chosen = [family]
    for _ in range(random.choice([0, 1, 4])):
        first = random.randrange(length - 2)
        chosen.append(
            naive.Strips("columns", random.randint(1, 2), span=(first, first + random.randint(0, 2)))
        )
    scene = Scene((1, length), chosen, cc.Shape(mask), naive.shape(mask))
    classes = draw(st.integers(2, most_classes))
    # Small sums are counted and large ones sorted; 200 a mutant is now the one, now the other.
    cap = draw(st.integers(2, 9) | st.sampled_from([200, 65536])) if soft else 1
    labels, units, truth = [], [], []
    for _ in range(6):
        voted = random.sample(range(classes), min(classes, random.randint(2, 8)))
        weights = [random.choice([1, 2, 6, 20]) for _ in voted]
        ballots = []
        while len(ballots) < len(scene.mutants):
            ballots += random.choices(voted, weights) * random.randint(1, random.choice([1, 3, 9]))
        ballots = ballots[: len(scene.mutants)]
        favourite = max(voted, key=ballots.count)
        truth.append(random.choice([favourite] * 6 + [random.choice(voted), random.randrange(classes)]))
        labels.append([[ballot, random.choice(voted)] for ballot in ballots] if soft else ballots)
        least = random.choice([0, cap // 2, cap])
        silent = random.choice([0, 0.2, 0.5])
        shares = [0 if random.random() < silent else random.randint(least, cap) for _ in ballots]
        units.append([[share, random.randint(0, cap - share)] for share in shares])
    return Election(scene, labels, truth, classes, units if soft else None, cap)


class MaskedScene(NamedTuple):
    """Masks on an image and a patch that they cover, with the slow twin's pixels of both."""

    image_size: tuple
    ablation: cc.Masks
    patch: object
    pixels: frozenset

    @property
    def masks(self):
        return naive.masks(self.ablation.per_axis, self.ablation.sides, *self.image_size)

    @property
    def mutants(self):
        return naive.unhidden(self.masks, *self.image_size)

    @property
    def rows(self):
        return naive.rows_of(self.ablation.num_masks)

    @property
    def sets(self):
        places = naive.places(self.pixels, *self.image_size)
        return naive.distinct(naive.touched(self.mutants, place) for place in places)


@st.composite
def masked_scenes(draw, most_masks=3, largest_side=7, smaller=True):
    """Masks and a patch that fits into the one they were made for."""
    height, width = draw(st.integers(2, largest_side)), draw(st.integers(2, largest_side))
    sides = draw(st.integers(1, height)), draw(st.integers(1, width))
    ablation = cc.Masks(draw(st.integers(2, most_masks)), patch=sides)
    kept = naive.unhidden(naive.masks(ablation.per_axis, sides, height, width), height, width)
    assume(all(kept))
    patch = (draw(st.integers(1, sides[0])), draw(st.integers(1, sides[1]))) if smaller else sides
    return MaskedScene((height, width), ablation, cc.Rectangle(*patch), naive.rectangle(*patch))


@st.composite
def masked_elections(draw, scene_strategy, num_classes=few, largest_cap=4, most_images=3):
    """Ballots in which some label is a favourite, as masks hide little; soft ones unless the cap is 1."""
    scene, classes = draw(scene_strategy), draw(num_classes)
    cap = draw(st.integers(1, largest_cap))
    labels, units, truth = [], [], []
    for _ in range(draw(st.integers(1, most_images))):
        favourite = draw(st.integers(0, classes - 1))
        faithful = draw(st.sampled_from([0.5, 0.9, 1.0]))
        random = draw(st.randoms(use_true_random=False))
        image_labels, image_units = [], []
        for _ in scene.mutants:
            first = favourite if random.random() < faithful else random.randrange(classes)
            given = random.randint((cap + 1) // 2, cap)
            image_labels.append([first, random.randrange(classes)])
            image_units.append([given, random.randint(0, cap - given)])
        labels.append(image_labels)
        units.append(image_units)
        truth.append(draw(st.sampled_from([favourite, favourite, *range(classes)])))
    if cap == 1 and draw(st.booleans()):
        return Election(scene, [[ballot[0] for ballot in image] for image in labels], truth, classes)
    return Election(scene, labels, truth, classes, units, cap)


def worst_attack_on_masks(election, image, ways):
    """The worst position of the true label over every attack, equal scores being lost.

    `naive.rewritten`, `naive.max_min` and `naive.position` for all attacks on one place at once.
    """
    scene, worst, truth = election.scene, 1, election.truth[image]
    before = np.zeros((len(scene.mutants), election.num_classes), np.int8)
    for mutant, ballot in enumerate(election.ballots(image)):
        before[mutant, list(ballot)] = list(ballot.values())
    ways = np.array(ways, np.int8)
    for attacked in map(sorted, naive.maximal(scene.sets)):
        chosen = np.indices([len(ways)] * len(attacked)).reshape(len(attacked), len(ways) ** len(attacked))
        after = np.repeat(before[None], chosen.shape[1], axis=0)
        after[:, attacked] = ways[chosen.T]
        scores = np.max([after[:, sorted(row)].min(axis=1) for row in scene.rows], axis=0)
        worst = max(worst, int((scores >= scores[:, [truth]]).sum(axis=1).max()))
    return worst


def small_enough_to_rewrite(scene, num_classes, most=2500):
    """Whether every rewriting of the touched ballots, mutant by mutant, can be tried."""
    return sum(num_classes ** len(attacked) for attacked in scene.sets) <= most


def by_masking(formula, election, ties, uncertain=None, tau=0):
    """min-k by the slow twin of a defender that masks windows, a list over images."""
    scene, doubtful = election.scene, uncertain or [[] for _ in election.images]
    return [
        formula(
            election.ballots(n),
            scene.windows,
            election.truth[n],
            election.num_classes,
            ties,
            frozenset(i for i, unsure in enumerate(doubtful[n]) if unsure),
            election.cap,
            tau,
        )
        for n in election.images
    ]
