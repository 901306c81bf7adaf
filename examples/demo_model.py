"""From pixels to certificates with the small network that comes with the package (needs costcert[models]).

python examples/demo_model.py
"""

from __future__ import annotations

from importlib.resources import as_file, files

import numpy as np

import costcert as cc
from costcert.datasets.subsets import limited

PATCH = cc.Square(4)
SOFT = cc.Soft(temperature=0.25, best=4)


def main() -> None:
    clothes = limited(cc.parse_dataset("sample"), 40)
    with as_file(files("costcert") / "sample" / "model") as folder:
        model = cc.load_model(folder)
    votes = cc.vote(model, clothes, model.ablation, soft=SOFT)
    print(f"{len(clothes)} photographs of clothes; every one was shown {votes.num_mutants} times, as strips.")

    certs = cc.certify(votes, PATCH, "costcert")
    for row in certs.accuracy(k=[1, 2, 3]).itertuples():
        print(f"top-{row.k}: {100 * row.clean:.1f} % right, {100 * row.certified:.1f} % certified")

    rank, min_k = certs.rank("costcert", PATCH), certs.min_k("costcert", PATCH)
    broken = np.flatnonzero((rank == 1) & (min_k > 1))
    if not len(broken):
        print("Every image that is right is certified: there is no attack to show.")
        return
    image = int(broken[0])
    attack = cc.witness(votes, image, PATCH, k=1)
    assert attack is not None
    names, label = clothes.class_names, clothes.label(image)
    (top, left), lifted = attack.places[0], int(attack.labels[0])
    print(
        f"\n{clothes.ids[image]} is a {names[label]} and is recognised. "
        f"A {PATCH.side} x {PATCH.side} sticker at row {top}, column {left} touches {len(attack.touched)} "
        f"strips. Were they all to vote as the witness says, {names[lifted]} would have "
        f"{attack.scores[lifted] / votes.cap:.1f} votes and {names[label]} "
        f"{attack.scores[label] / votes.cap:.1f}. Whether some pixels make them do so is not known; that "
        f"{names[label]} stays in the top {min_k[image]} is proved."
    )

    # What is put to use is what was certified.
    service = cc.Deployed(model, soft=SOFT)
    (shown,) = service.predict(clothes.image(image), k=3)
    print(f"The deployed classifier says: {', '.join(names[each] for each in shown)}")


if __name__ == "__main__":
    main()
