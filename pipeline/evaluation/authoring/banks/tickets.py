"""Customers' messages by the team that owns them; level 0 names the topic, level 1 only implies it."""

TEAMS: dict[str, tuple[list[str], list[str]]] = {
    "billing": (
        ["I was charged twice for order {k}. Please refund one payment.",
         "Why does my invoice for {month} show a fee of {a} euros?",
         "My credit card was declined although there is money on it.",
         "Can I get the bill for order {k} with my company's tax number?"],
        ["The amount on my statement is higher than what I agreed to in {month}.",
         "There are {a} euros missing from my account since {day}, and your name is beside them.",
         "You promised me the student discount, yet I paid the full sum in {month}."]),
    "delivery": (
        ["My parcel {k} should have arrived on {day}. Where is it?",
         "The tracking page has shown the same place since {day}.",
         "The courier left the package {k} in front of the wrong house.",
         "Can you ship order {k} to a pick-up point instead?"],
        ["I waited at home all {day} and nobody rang.",
         "It has been in the depot for {a} days now. Is the driver lost?",
         "My neighbour across the street found my box from {day} in the rain."]),
    "account": (
        ["I forgot my password and the reset mail never comes.",
         "Please delete my profile and my data before {month}.",
         "How do I change the email address that I log in with?",
         "The app says that my user name is locked after {a} attempts."],
        ["I got a new phone on {day} and now I cannot get in any more.",
         "It keeps telling me that somebody signed in from another city on {day}.",
         "I married in {month} and would like to be called by my new name on your site."]),
    "returns": (
        ["The shoes from order {k} are too small. How do I send them back?",
         "I want to return the lamp that I bought on {day}.",
         "Where do I find the return label for order {k}?",
         "Is it still possible to exchange the jacket from {month} for another size?"],
        ["The blue looks quite different from the picture, I do not want to keep order {k}.",
         "It was a gift in {month} and I already own the same one.",
         "The sleeves of order {k} end above my wrists. What can we do?"]),
    "technical": (
        ["The app crashes whenever I open the camera.",
         "Your website shows error {a} when I click on search.",
         "After the update on {day} the screen stays black.",
         "The printer does not connect to the wireless network."],
        ["Nothing happens when I press the green button, and that since {day}.",
         "It freezes at {a} percent every time, also after a restart.",
         "My sister's device finds the signal, mine from {month} does not."]),
}  # fmt: skip
