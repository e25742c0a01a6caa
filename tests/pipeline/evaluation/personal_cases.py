"""The recall set of the detector: invented personal data as people write it, and text that only looks like it.

Nothing here belongs to anybody: reserved domains and numbers, made-up names, keys of no service. The forms in
``MISSED`` are known not to be found; they are counted in the recall, so that the figure is honest.
"""

FOUND: dict[str, list[str]] = {
    "email": [
        "Write to jo.doe@example.org.", "mailto:a+b@mail.example.co.uk", "<X_Y-1@example.museum>",
        "my address is JO%5@EXAMPLE.COM thanks", "jo.doe (at) example.org", "jo [at] example [dot] org",
        "user@sub.domain.example.net, please", "Contact:jane@example.info", "o'neil.k@example.ie said so",
    ],
    "phone": [
        "Ring +49 30 1234 5678.", "call (555) 010-4477 today", "555-010-4477", "tel. +15550104477",
        "+44 20 7946 0958", "my mobile is 0151 555 0123 45", "030/5550 123", "0033 1 55 50 01 23", "555.010.4477",
        "+1 (555) 010-9999 ext 4", "phone:01632 960 001", "Call 020 7946 0123 after six", "fax 0221-5550-123",
        "reach me on 07700900123",
    ],
    "card": [
        "Pay with 4111 1111 1111 1111.", "card 5500-0000-0000-0004", "378282246310005",
        "no. 6011000000000004 exp 12/30", "my visa is 4012888888881881", "30569309025904", "4111 1111 1111 11 11",
    ],
    "account": [
        "To DE89 3704 0044 0532 0130 00.", "GB29NWBK60161331926819", "iban: FR14 2004 1010 0505 0001 3M02 606",
        "NL91ABNA0417164300", "CH93 0076 2011 6238 5295 7", "AT611904300234573201",
    ],
    "id": [
        "SSN 123-45-6789", "my social is 219-09-9999 ok", "QQ has AB 12 34 56 C as NI number", "JG103759A",
        "Passport number: C01X00T47", "passport no. 123456789", "tax id 12 345 678 901", "driver's license D1234567",
        "insurance number: 65 070649 C 103", "National ID: 8001015009087", "NHS number 943 476 5919",
    ],
    "secret": [
        "AKIAIOSFODNN7EXAMPLE", "use ghp_0123456789abcdefghijABCDEFGHIJ012345", "-----BEGIN RSA PRIVATE KEY-----",
        "sk-proj-abcDEF0123456789abcDEF01", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijk",
        "postgres://admin:hunter22@db.internal/x", "xoxb-123456789012-abcdefABCDEF", "glpat-ABCdef0123456789xyz_",
        "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
    ],
    "credential": [
        "password: hunter2x", "the password is Tr0ub4dor", "API_KEY=9f8e7d6c5b4a", "api key: 'k3y-v4lu3-abc'",
        "Authorization: Bearer 0a1b2c3d4e5f", "pwd = s3cret!!", '"access_token": "A1b2C3d4E5"', "passcode 48fj29dk",
    ],
    "network": ["from 203.0.113.7 at noon", "host 198.51.100.23:8080", "mac 00:1B:44:11:3A:B7", "at 203.00.113.0077"],
    "address": [
        "I live at 12 Maple Street.", "ship to 4571 Old Mill Road, Apt 3", "221b Baker Street", "9 Elm Ave",
        "Lindenstraße 14", "wohnhaft Am Hang, Bergweg 7a", "12 rue des Lilas", "PO Box 4711", "SW1A 1AA",
        "1600 North Harbor Boulevard", "Goethestr. 3", "7, avenue du Port",
    ],
    "name": [
        "My name is Corin Vale and I lost it.", "Dear Mr. Vale,", "This is Marla Quint from room 4", "Hi Corin,",
        "Best regards,\nMarla Quint", "Patient: Odo Brenner", "Frau Brenner hat angerufen", "Dr. A. Quint",
        "I'm Odo Brenner, your tenant", "name: Lise Aubry", "je m'appelle Lise Aubry", "Ich heiße Odo",
        "Thanks,\nCorin", "Mrs Aubry called", "customer: Corin J. Vale", "my name's Marla",
    ],
}  # fmt: skip

MISSED: dict[str, list[str]] = {
    "email": ["jo at example dot org"],
    "phone": ["five five five, oh one oh, four four seven seven", "5550104477"],
    "id": ["my number at the tax office, 12345678901"],
    "credential": ["log in with corin / correcthorse"],
    "address": ["the yellow house behind the mill in Ulm", "Via Roma 12, Torino"],
    "name": ["corin vale here, still waiting", "Corin Vale wants his money back", "ask Marla about it"],
}

INNOCENT: list[str] = [
    "On 2026-11-29 at 10:15", "1 2 3 4 5 6 7 8 9", "order AB-1234, 51 boxes, 1,250 euros", "4111 1111 1111 1112 units",
    "1 2 3 4 5 6 7 8 9, from 2026-11-29 to 2026-12-01",
    "On 2026-11-30 at 10:45:00 it rained.", "The ratio is 1024/2048.", "Version 1.2.3.4 of the tool",
    "Add 1000 2000 3000 4000.", "12/31/2024", "pages 100-120, 130-140 and 150-160", "It costs $1,200.50.",
    "3.141592653589793", "0.1234567890123", "The series 10 20 30 40 50", "Order 48213", "8 x 12 = 96",
    "Between 1914-1918 and 1939-1945", "The token was lost.", "A password is a secret word.", "the secret of bread",
    "Keep your password safe and secret.", "bearer of good news", "127.0.0.1", "192.168.0.12:80", "10.0.0.255",
    "def f(a: int, b: int) -> int: return a @ b", "@decorator", "see you @ noon", "a@b", "The way to the street",
    "Two streets and 14 houses", "He is a doctor.", "Dear all,", "Thanks, and good night", "I am sure that it is.",
    "This is the end of the line.", "May 2026 was dry.", "I am from Ulm.", "Question 12: name the capital.",
    "ISBN 978-3-16-148410-0", "1234567890123456", "room 12-34-56", "Call the function twice.", "AB12 is a paper size",
    "x = [1, 2, 3, 4, 5, 6]", "f(100, 200, 300)", "0 0 0 0 0 0 0 0 0 0", "2^10 = 1024", "12345678901234567890123",
    "token = next(tokens)", "key: value", "The password is required.", "5 Easy Steps", "Hello world",
    "100 200 300 400 500", "Score: 101-99, 87-91", "speed 300000 km/s", "2026-W49", "GB has 4 parts",
    "strip the zeroes of 10.08.094.196", "192.168.001.045",
]  # fmt: skip
