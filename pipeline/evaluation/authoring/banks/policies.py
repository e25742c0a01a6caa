# ruff: noqa: E501  (tables are read across)
"""Policy texts with slots, and questions about them.

Each slot is (low, high, step) for a number or a list of words. A question is (text, accepted answers): answers may use
slots, the first one is the form that the text itself uses.
"""

from typing import Any

POLICIES: dict[str, tuple[str, dict[str, Any], list[tuple[str, list[str]]]]] = {
    "refunds": (
        "Goods can be returned within {d} days of delivery. The refund is paid to the card that was used, usually within "
        "{w} working days. Opened software and {x} cannot be returned. Return postage costs {p} euros.",
        {"d": (14, 60, 1), "w": (3, 10, 1), "p": (3, 9, 1), "x": ["earphones", "swimwear", "gift cards", "perfume"]},
        [("Within how many days of delivery can goods be returned?", ["{d} days", "{d}"]),
         ("How much does the return postage cost?", ["{p} euros", "{p} euro", "€{p}", "{p}"]),
         ("Besides opened software, what cannot be returned?", ["{x}"])]),
    "gym": (
        "The gym opens at {o} am on weekdays and at {s} am on Saturdays. Members may bring one guest a month; a second guest "
        "pays {p} pounds. Lockers are emptied every {day} evening. Children under {a} may only use the pool.",
        {"o": (5, 7, 1), "s": (8, 10, 1), "p": (4, 15, 1), "a": (8, 15, 1), "day": ["Sunday", "Monday", "Friday"]},
        [("On which day are lockers emptied?", ["{day}", "every {day}", "{day} evening", "every {day} evening"]),
         ("How much does a second guest pay?", ["{p} pounds", "£{p}", "{p}"]),
         ("When does the gym open on Saturdays?", ["{s} am", "at {s} am", "{s}"])]),
    "hotel": (
        "Check-in starts at {i} pm and check-out ends at {e} am. Breakfast is served in the {room} until {b} am. Dogs are "
        "welcome for {p} dollars a night. A late check-out must be agreed with the front desk the evening before.",
        {"i": (2, 4, 1), "e": (10, 12, 1), "b": (9, 11, 1), "p": (5, 30, 5),
         "room": ["winter garden", "library", "old cellar", "roof terrace"]},
        [("Where is breakfast served?", ["in the {room}", "the {room}", "{room}"]),
         ("How much does a dog cost for one night?", ["{p} dollars", "${p}", "{p}", "{p} dollars a night"]),
         ("With whom must a late check-out be agreed?", ["the front desk", "front desk", "with the front desk"])]),
    "lending": (
        "Books are lent for {w} weeks, films for {f} days. A loan can be renewed {t} unless somebody has reserved the title. "
        "Each day of delay costs {c} cents. Lost cards are replaced for {p} euros at the {desk}.",
        {"w": (2, 6, 1), "f": (3, 9, 1), "t": ["once", "twice", "three times"], "c": (10, 60, 5), "p": (3, 12, 1),
         "desk": ["main desk", "side entrance", "first floor desk"]},
        [("For how long are films lent?", ["{f} days", "for {f} days", "{f}"]),
         ("How often can a loan be renewed?", ["{t}"]),
         ("What does each day of delay cost?", ["{c} cents", "{c}"])]),
    "parking": (
        "Visitors park on level {l}. The first {m} minutes are free, every further hour costs {p} euros. A lost ticket is "
        "charged at {t} euros. Electric cars may charge at the {colour} posts as long as they are parked.",
        {"l": (1, 5, 1), "m": (15, 45, 5), "p": (1, 4, 1), "t": (15, 40, 5), "colour": ["green", "blue", "yellow", "white"]},
        [("How many minutes are free?", ["{m} minutes", "{m}", "the first {m} minutes"]),
         ("What colour are the posts for electric cars?", ["{colour}"]),
         ("How much is charged for a lost ticket?", ["{t} euros", "€{t}", "{t}"])]),
    "warranty": (
        "The motor is guaranteed for {y} years, the battery for {m} months. The guarantee ends if the housing was opened by "
        "anyone but a {brand} workshop. Claims are made with the receipt; repairs take about {d} days.",
        {"y": (2, 10, 1), "m": (6, 24, 6), "d": (5, 21, 1), "brand": ["Norvik", "Talvera", "Oakline", "Brigg"]},
        [("For how long is the battery guaranteed?", ["{m} months", "for {m} months", "{m}"]),
         ("Whose workshop may open the housing?", ["{brand}", "a {brand} workshop", "{brand} workshop"]),
         ("How long do repairs take?", ["about {d} days", "{d} days", "{d}"])]),
    "bike_hire": (
        "A city bike costs {p} euros a day, an electric one {e} euros. The deposit of {d} euros is returned when the bike comes "
        "back before {h} pm. Helmets are free. In case of a puncture, call the shop in {street}.",
        {"p": (8, 18, 1), "e": (20, 39, 1), "d": (40, 90, 10), "h": (6, 9, 1),
         "street": ["Mill Lane", "Harbour Street", "Castle Road", "Linden Row"]},
        [("How much is the deposit?", ["{d} euros", "€{d}", "{d}"]),
         ("In which street is the shop?", ["{street}", "in {street}"]),
         ("What is free?", ["helmets", "helmets are free", "the helmets"])]),
    "office": (
        "Working from home is possible on up to {n} days a week. Everybody is in the office on {day}s. Requests go to the {who}, "
        "who answers within {h} hours. Desks are booked in the app called {app}.",
        {"n": (2, 4, 1), "day": ["Tuesday", "Wednesday", "Thursday"], "h": (24, 72, 12),
         "who": ["team lead", "office manager", "head of staff"], "app": ["Perch", "Deskly", "Seatmap"]},
        [("What is the desk booking app called?", ["{app}"]),
         ("On which day is everybody in the office?", ["{day}", "{day}s", "on {day}s", "on {day}"]),
         ("Who answers requests?", ["the {who}", "{who}"])]),
    "cinema": (
        "Seats that are reserved by phone must be collected {m} minutes before the film. On {day}s all tickets cost {p} euros. "
        "Food from outside is not allowed, except for {food}. Films over {l} minutes carry an extra charge.",
        {"m": (20, 45, 5), "day": ["Monday", "Tuesday", "Wednesday"], "p": (5, 9, 1), "l": (130, 170, 10),
         "food": ["fruit", "baby food", "sandwiches"]},
        [("Which food from outside is allowed?", ["{food}"]),
         ("On which day do all tickets cost the same?", ["{day}", "{day}s", "on {day}s"]),
         ("How long before the film must reserved seats be collected?",
          ["{m} minutes", "{m} minutes before the film", "{m}", "{m} minutes before"])]),
    "plan": (
        "The basic plan includes {g} gigabytes and {u} users. It renews every {period} and can be cancelled up to {d} days before. "
        "Support is given by {way}. Unused storage does not carry over.",
        {"g": (20, 200, 10), "u": (2, 9, 1), "period": ["month", "quarter", "year"], "d": (2, 14, 1),
         "way": ["email", "phone", "chat"]},
        [("How many users does the basic plan include?", ["{u} users", "{u}"]),
         ("How often does the plan renew?", ["every {period}", "{period}", "each {period}"]),
         ("How is support given?", ["by {way}", "{way}"])]),
    "points": (
        "You earn {n} points for every euro. {m} points are worth a voucher of {v} euros. Points expire after {y} months, and points "
        "on {x} are never granted. Gold members get a present in {month}.",
        {"n": (1, 5, 1), "m": (200, 900, 50), "v": (5, 20, 5), "y": (6, 36, 6), "x": ["books", "tobacco", "stamps"],
         "month": ["May", "June", "December"]},
        [("After how many months do points expire?", ["{y} months", "{y}", "after {y} months"]),
         ("In which month do gold members get a present?", ["{month}", "in {month}"]),
         ("What is a voucher worth?", ["{v} euros", "€{v}", "{v}"])]),
    "flat": (
        "Rubbish is collected on {day}; the bins stand in the {place}. Quiet hours begin at {h} pm. The washing machine takes {c} coins, "
        "which the caretaker, {who}, sells on weekdays. Bicycles belong in the shed.",
        {"day": ["Monday", "Tuesday", "Thursday", "Friday"], "place": ["back yard", "gateway", "cellar"], "h": (8, 11, 1),
         "c": (2, 6, 1), "who": ["Mr Alvarez", "Ms Brandt", "Mr Cole", "Ms Dube"]},
        [("Who is the caretaker?", ["{who}"]),
         ("When do quiet hours begin?", ["{h} pm", "at {h} pm", "{h}"]),
         ("Where do the bins stand?", ["in the {place}", "the {place}", "{place}"])]),
    "pool": (
        "The pool is heated to {t} degrees. Caps are compulsory; you can buy one at the {where} for {p} euros. Lessons for "
        "beginners are given by {who}. Children under {a} need a grown-up in the water.",
        {"t": (24, 30, 1), "p": (2, 9, 1), "a": (6, 10, 1), "where": ["ticket desk", "kiosk", "entrance"],
         "who": ["Ms Tran", "Mr Egede", "Ms Colombo", "Mr Weiss"]},
        [("Who gives the lessons for beginners?", ["{who}"]),
         ("Where can you buy a cap?", ["at the {where}", "the {where}", "{where}"]),
         ("How warm is the pool?", ["{t} degrees", "{t}"])]),
    "theatre": (
        "The doors open {m} minutes before the play. Latecomers are let in at the first {when}. Coats are left in the {room} for "
        "{c} coins. Glasses for the back rows can be hired from {who}.",
        {"m": (20, 60, 5), "c": (2, 5, 1), "when": ["interval", "change of scene"], "room": ["cellar", "west lobby", "old bar"],
         "who": ["the usher", "the barman", "the cashier"]},
        [("Where are coats left?", ["in the {room}", "the {room}", "{room}"]),
         ("From whom can glasses be hired?", ["{who}", "from {who}"]),
         ("How long before the play do the doors open?", ["{m} minutes", "{m} minutes before the play", "{m}", "{m} minutes before"])]),
    "courier": (
        "Parcels up to {k} kilos are taken to your door. Heavier ones wait in the {place} for {d} days. The driver rings "
        "{t} before leaving a card. Complaints go to {mail}, who answers on {day}s.",
        {"k": (10, 30, 1), "d": (4, 9, 1), "t": ["once", "twice", "three times"], "place": ["depot", "corner shop", "petrol station"],
         "mail": ["Ms Adeyemi", "Mr Holt", "Ms Varga"], "day": ["Monday", "Tuesday", "Friday"]},
        [("Where do heavier parcels wait?", ["in the {place}", "the {place}", "{place}"]),
         ("How often does the driver ring?", ["{t}"]),
         ("Who answers complaints?", ["{mail}"])]),
    "dentist": (
        "Appointments are free of charge if they are cancelled {h} hours before; after that they cost {p} euros. On {day}s the "
        "practice is closed. In an emergency call {who}. New patients bring {what}.",
        {"h": (12, 48, 12), "p": (20, 60, 5), "day": ["Wednesday", "Thursday", "Friday"],
         "who": ["Dr Silva", "Dr Mensah", "Dr Novak"], "what": ["an insurance card", "old X-rays", "a list of medicines"]},
        [("Whom do you call in an emergency?", ["{who}"]),
         ("What do new patients bring?", ["{what}"]),
         ("On which day is the practice closed?", ["{day}", "{day}s", "on {day}s", "on {day}"])]),
    "allotment": (
        "Water is turned on in {month}. Hedges may be {h} centimetres high. Bonfires are allowed on the first {day} of a month "
        "only. The key of the gate costs a deposit of {p} euros and is kept by {who}.",
        {"month": ["March", "April", "May"], "h": (110, 180, 10), "day": ["Saturday", "Sunday"], "p": (10, 40, 5),
         "who": ["Mrs Okoro", "Mr Lind", "Mrs Petit"]},
        [("In which month is the water turned on?", ["{month}", "in {month}"]),
         ("How high may hedges be?", ["{h} centimetres", "{h} cm", "{h}", "{h} centimetres high"]),
         ("Who keeps the key of the gate?", ["{who}"])]),
    "museum_pass": (
        "The pass is valid for {m} months and admits {n} people. It is not valid in the {place}. Lost passes are replaced by "
        "{who} for {p} euros. Guided tours start on the hour in the {hall}.",
        {"m": (3, 18, 3), "n": (4, 8, 1), "p": (10, 30, 5), "place": ["planetarium", "wax gallery", "aquarium"],
         "who": ["the cashier", "the main office", "the gift shop"], "hall": ["blue hall", "glass hall", "entrance hall"]},
        [("Where is the pass not valid?", ["in the {place}", "the {place}", "{place}"]),
         ("How many people does the pass admit?", ["{n}", "{n} people"]),
         ("Where do guided tours start?", ["in the {hall}", "the {hall}", "{hall}"])]),
}  # fmt: skip
