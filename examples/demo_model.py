"""From images to certificates with the small network in the package (needs costcert[models]).

python examples/demo_model.py
"""

from __future__ import annotations

from importlib.resources import as_file, files

import numpy as np

import costcert as cc
from costcert.datasets.subsets import limited

PATCH = cc.Square(4)
SOFT = cc.Soft(temperature=0.7, best=10)


def main() -> None:
    clothes = limited(cc.parse_dataset("sample"), 40)
    with as_file(files("costcert") / "sample" / "model") as folder:
        model = cc.load_model(folder)
    votes = cc.vote(model, clothes, model.ablation, soft=SOFT)
    print(f"{len(clothes)} photographs of clothes, {votes.num_mutants} mutants each.")

    certs = cc.certify(votes, PATCH, "costcert")
    for row in certs.accuracy(k=[1, 2, 3]).itertuples():
        print(f"top-{row.k}: {100 * row.clean:.1f} % correct, {100 * row.certified:.1f} % certified")

    rank, min_k = certs.rank("costcert", PATCH), certs.min_k("costcert", PATCH)
    broken = np.flatnonzero((rank == 1) & (min_k > 1))
    if not len(broken):
        print("Every correctly classified image is certified: there is no attack to show.")
        return
    image = int(broken[0])
    attack = cc.witness(votes, image, PATCH, k=1)
    assert attack is not None
    names, label = clothes.class_names, clothes.label(image)
    (top, left), lifted = attack.places[0], int(attack.labels[0])
    print(
        f"\n{clothes.ids[image]} is a {names[label]} and is classified correctly. "
        f"A {PATCH.side} x {PATCH.side} patch at row {top}, column {left} touches {len(attack.touched)} "
        f"mutants. With the ballots of the witness, {names[lifted]} would have "
        f"{attack.scores[lifted] / votes.cap:.1f} votes and {names[label]} "
        f"{attack.scores[label] / votes.cap:.1f}. Whether pixels exist that cause these ballots is "
        f"not known; that {names[label]} stays in the top {min_k[image]} is proved."
    )

    # The deployed classifier is the one that was certified.
    deployed = cc.Deployed(model, soft=SOFT)
    (labels,) = deployed.predict(clothes.image(image), k=3)
    print(f"The deployed classifier predicts: {', '.join(names[each] for each in labels)}")


if __name__ == "__main__":
    main()
