"""Words of the packaged claims: treatments, outcomes and ways to state a finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

Direction = Literal["lower", "higher", "same"]

# every treatment is singular, and every outcome is a quantity that can be higher or lower
TREATMENTS: Sequence[str] = (
    "beetroot juice", "green tea", "daily walking", "cold bathing", "vitamin D", "magnesium",
    "melatonin", "strength training", "yoga", "creatine", "dark chocolate", "garlic powder",
    "ginger extract", "oat bran", "olive oil", "whey protein", "zinc", "iodised salt",
    "bright light therapy", "cognitive therapy", "acupuncture", "chewing gum", "music therapy",
    "intermittent fasting", "a low-salt diet", "a vegan diet", "nordic walking", "swimming",
    "tai chi", "cycling to work", "caffeine", "fish oil", "folic acid", "iron", "probiotic yoghurt",
    "psyllium", "red yeast rice", "saffron", "soy protein", "turmeric", "valerian", "vitamin C",
    "vitamin K", "walnut oil", "willow bark", "wheat germ", "breathing training", "a standing desk",
    "guided imagery", "a nap at noon", "lavender oil", "choir singing", "gardening", "pomegranate",
    "hibiscus tea", "cinnamon", "chia seed", "selenium", "biotin", "a warm foot bath",
)  # fmt: skip
NEW_TREATMENTS: Sequence[str] = (
    "rosehip powder", "trampoline jumping", "aronia juice", "taurine", "a weighted blanket",
    "sauna bathing", "chamomile", "nettle tea", "inulin", "berberine", "stair climbing",
    "kettlebell training", "spirulina", "lycopene", "carnitine", "a Mediterranean diet",
    "peppermint",
    "ballroom dancing", "ashwagandha", "fenugreek", "maca root", "rowing", "sour cherry juice",
    "riboflavin", "glycine", "hop extract", "lutein", "mindful eating", "Pilates", "kefir",
)  # fmt: skip
OUTCOMES: Sequence[str] = (
    "systolic blood pressure", "fasting glucose", "LDL cholesterol", "resting heart rate",
    "the number of migraine days", "the rate of hip fractures", "sleep latency", "reaction time",
    "bone loss", "plasma ferritin", "grip strength", "body weight", "waist circumference",
    "the rate of falls", "joint pain", "exam anxiety", "evening cortisol", "muscle soreness",
    "the duration of colds", "serum creatinine", "walking speed", "lung capacity", "gum bleeding",
    "the number of hot flushes", "daytime sleepiness", "fat in the blood", "skin dryness",
    "the rate of relapse", "hospital stay", "appetite", "back pain", "homocysteine", "uric acid",
    "insulin resistance", "liver fat", "eye pressure", "hearing loss", "the number of seizures",
    "wound healing time", "menstrual pain",
)  # fmt: skip
NEW_OUTCOMES: Sequence[str] = (
    "arterial stiffness", "the number of asthma attacks", "tooth decay", "nocturnal leg cramps",
    "C-reactive protein", "tear production", "the rate of readmission", "postoperative nausea",
    "balance scores", "vertigo", "salivary amylase", "reading speed", "knee swelling",
    "platelet count", "morning stiffness", "the number of night wakings", "short-term memory",
    "urinary calcium", "jet lag", "tendon thickness",
)  # fmt: skip
CLAIMS: Mapping[Direction, Sequence[str]] = {
    "lower": ("{Treatment} lowers {outcome}.", "{Treatment} reduces {outcome}."),
    "higher": ("{Treatment} raises {outcome}.", "{Treatment} increases {outcome}."),
    "same": ("{Treatment} has no effect on {outcome}.", "{Treatment} does not change {outcome}."),
}
FINDINGS: Mapping[Direction, Sequence[str]] = {
    "lower": (
        "{Treatment} lowered {outcome} by {percent} percent.",
        "In the group with {treatment}, {outcome} fell by {percent} percent.",
        "{Outcome} was reduced after {months} months of {treatment}.",
        "Compared with a placebo, {treatment} brought {outcome} down.",
    ),
    "higher": (
        "{Treatment} raised {outcome} by {percent} percent.",
        "In the group with {treatment}, {outcome} rose by {percent} percent.",
        "{Outcome} was increased after {months} months of {treatment}.",
        "Compared with a placebo, {treatment} drove {outcome} up.",
    ),
    "same": (
        "{Treatment} had no effect on {outcome}.",
        "In the group with {treatment}, {outcome} stayed the same.",
        "{Outcome} was unchanged after {months} months of {treatment}.",
        "Compared with a placebo, {treatment} made no difference to {outcome}.",
    ),
}
ENDINGS: Sequence[str] = (
    "Side effects were rare.",
    "Larger trials are needed.",
    "Few participants left the study.",
    "The study was not blinded.",
)
OTHER_CLAIMS: Mapping[Direction, Sequence[str]] = {
    "lower": (
        "{Outcome} can be brought down by {treatment}.",
        "With {treatment}, {outcome} drops.",
    ),
    "higher": ("{Outcome} goes up with {treatment}.", "{Treatment} pushes {outcome} up."),
    "same": ("{Outcome} is independent of {treatment}.", "{Treatment} leaves {outcome} unaltered."),
}
OTHER_FINDINGS: Mapping[Direction, Sequence[str]] = {
    "lower": (
        "Those who received {treatment} showed a decline in {outcome}.",
        "There was a marked drop of {outcome} under {treatment}.",
        "A fall of {percent} percent in {outcome} was seen with {treatment}.",
    ),
    "higher": (
        "Those who received {treatment} showed a surge in {outcome}.",
        "There was a marked growth of {outcome} under {treatment}.",
        "A climb of {percent} percent in {outcome} was seen with {treatment}.",
    ),
    "same": (
        "Those who received {treatment} showed no shift in {outcome}.",
        "No difference in {outcome} could be attributed to {treatment}.",
        "{Outcome} did not respond to {treatment}.",
    ),
}
OTHER_ENDINGS: Sequence[str] = (
    "The results await replication.",
    "No serious harm was reported.",
    "Adherence was good in both arms.",
)
