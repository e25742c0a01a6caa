# ruff: noqa: E501  (tables are read across)
"""Notes, mails and slips with fields to pull out: {family: (text, {field as asked: slot})}. Slots are filled by fields.py."""

RECORDS: dict[str, tuple[str, dict[str, str]]] = {
    "order_mail": (
        "Hello, this is {name} from {city}. On {date} I ordered {count} {thing}, order number {code}, and paid {money} euros. "
        "Please send everything to my office.",
        {"order number": "code", "city": "city", "amount paid": "money", "product": "thing"}),
    "invoice": (
        "INVOICE {code}\nIssued: {date}\nCustomer: {name}, {city}\n{count} x {thing}\nTotal due: {money} EUR",
        {"invoice number": "code", "name of the customer": "name", "total due": "money", "issue date": "date"}),
    "meeting": (
        "Minutes: {name} chaired. The group met in {city} on {date} and agreed to buy {count} {thing} for {money} euros. "
        "Reference {code}.",
        {"name of the chair": "name", "city": "city", "budget": "money", "reference code": "code"}),
    "repair": (
        "{name} brought in a set of {thing} on {date}. Estimate: {money} euros. Ticket {code}; pick-up in {city}.",
        {"ticket number": "code", "estimated price": "money", "city of the pick-up": "city", "name of the customer": "name"}),
    "shipment": (
        "Consignment {code} left {city} on {date} with {count} boxes of {thing}. Insured for {money} euros. Contact: {name}.",
        {"consignment code": "code", "city of departure": "city", "name of the contact": "name", "insured value": "money", "number of boxes": "count"}),
    "booking": (
        "Booking {code} is confirmed. Guest: {name}. Arrival: {date}. {count} nights in {city}, {money} euros in all.",
        {"booking code": "code", "name of the guest": "name", "date of arrival": "date", "number of nights": "count", "city": "city"}),
    "donation": (
        "On {date}, {name} gave {count} {thing} to the school in {city}. They are worth {money} euros and are listed as {code}.",
        {"name of the donor": "name", "value in euros": "money", "code in the list": "code", "city": "city", "number of items": "count"}),
    "lost": (
        "Found on the train to {city}: a bag with {count} {thing}. Handed in by {name} on {date}, kept under {code}. Fee {money} euros.",
        {"code of the bag": "code", "name of the finder": "name", "fee": "money", "destination of the train": "city"}),
    "lease": (
        "Lease {code}: {name} rents the shop in {city} from {date} on, with {count} {thing}, for {money} euros a month.",
        {"number of the lease": "code", "name of the tenant": "name", "monthly rent": "money", "first day of the lease": "date"}),
    "complaint": (
        "{date}. {name} rang from {city}: {count} {thing} out of order {code} were scratched, for which {money} euros are to be paid back.",
        {"order number": "code", "name of the caller": "name", "sum to be paid back": "money", "city of the caller": "city", "product": "thing"}),
    "auction": (
        "Lot {code}: {count} {thing}, sold on {date} in {city} to {name} for {money} euros.",
        {"lot number": "code", "name of the buyer": "name", "price": "money", "date of the sale": "date", "number of items": "count"}),
    "delivery_note": (
        "Deliver to: {name}, {city}\nDate: {date}\nGoods: {count} {thing}\nCash on delivery: {money} EUR\nNote number: {code}",
        {"note number": "code", "date of delivery": "date", "cash on delivery": "money", "name of the receiver": "name"}),
}  # fmt: skip
CITIES = [
    "Lisbon",
    "Bergen",
    "Graz",
    "Lyon",
    "Bologna",
    "Leeds",
    "Turku",
    "Gdansk",
    "Cork",
    "Porto",
    "Basel",
    "Ghent",
    "Malmo",
    "Split",
    "Riga",
]
SURNAMES = [
    "Abara",
    "Lindqvist",
    "Moreau",
    "Petrov",
    "Okafor",
    "Rossi",
    "Novak",
    "Haddad",
    "Kimura",
    "Silva",
    "Jensen",
    "Dubois",
    "Marku",
    "Sato",
    "Vega",
]
THINGS = [
    "desk lamps", "garden chairs", "blue folders", "oak shelves", "wool blankets", "paper lanterns", "tin whistles",
    "rain barrels", "chess boards", "maple planks", "clay pots", "bicycle bells", "walking boots", "tea cups",
]  # fmt: skip
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
