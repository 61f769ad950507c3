"""More than 300 texts in many scripts, with all that makes a stream of tokens hard to show."""

from itertools import product

LATIN = (
    "The quick brown fox jumps over the lazy dog.",
    "What is the capital of France? The capital of France is Paris.",
    "Voilà, l'été dernier à Orléans : « où êtes-vous, cœur naïf ? »",
    "Die Straße über den Fluß ist groß, schön und äußerst übersichtlich.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia. ¿Qué? ¡Olé!",
    "À noite, vovô Kowalsky vê o ímã cair no pé do pinguim queixoso.",
    "Pchnąć w tę łódź jeża lub ośm skrzyń fig.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Árvíztűrő tükörfúrógép.",
    "Pijamalı hasta yağız şoföre çabucak güvendi. İstanbul'da ılık.",
    "Blåbærsyltetøy på brødskiva; kjære Åse æter øl.",
    "Kæmi ný öxi hér, ykist þjófum nú bæði víl og ádrepa.",
    "Do bạch kim rất quý nên sẽ dùng để lắp vô xương. Tiếng Việt!",
    "Glāžšķūņa rūķīši dzērumā čiepj Baha koncertflīģeļu vākus.",
    "Įlinkdama fechtuotojo špaga sublykčiojusi pragręžė apvalų arbūzą.",
    "Ìwò̩fà ń yò̩ séji tó gbojúmó̩, ó hàn pákànpò̩ gan-an.",
    "ǅ ĳ ﬁ ﬂ ſ ß ẞ Ø ð Þ ŋ ƿ ȝ — the odd ones.",
)
GREEK_CYRILLIC = (
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "Ἐν ἀρχῇ ἦν ὁ λόγος, καὶ ὁ λόγος ἦν πρὸς τὸν θεόν.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Щастям б'єш жук їх глицю в фон й ґедзь пріч.",
    "Љубазни фењерџија чађавог лица хоће да ми покаже штос.",
    "Жълтата дюля беше щастлива, че пухът цъфна.",
    "Щётка, объём, подъезд — и «кавычки-ёлочки».",
    "Ѣ, Ѳ, Ѵ и Ѯ: буквы, которых нет.",
    "Բել դղյակի ձախ ժամն օֆ ազգությանը ցպահանջ չճշտած վնաս էր.",
    "გთხოვთ ახლავე გაიაროთ რეგისტრაცია Unicode-ის კონფერენციაზე.",
)
RIGHT_TO_LEFT = (
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر.",
    "اَلسَّلَامُ عَلَيْكُمْ وَرَحْمَةُ ٱللَّٰهِ",
    "یک نیم‌فاصله و گاف: می‌خواهم بروم؛ «گچ پژ».",
    "ٹھنڈ میں، ایک قحط زدہ گاؤں سے گذرتے وقت۔",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה.",
    "בְּרֵאשִׁית בָּרָא אֱלֹהִים אֵת הַשָּׁמַיִם",
    "The word שלום means peace, and سلام too (v2.0).",
    "\u202bעברית with English 123\u202c and \u2067עוד\u2069 end\u200f.",
    "السعر: ١٢٣٫٤٥ دولار — 50٪ خصم!",
    "ܫܠܡܐ ܥܠܟܘܢ",
)
INDIC = (
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश।",
    "क्ष त्र ज्ञ श्र — संयुक्ताक्षर, नुक़्ता और हिन्दी।",
    "আমার সোনার বাংলা, আমি তোমায় ভালোবাসি।",
    "யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் இனிதாவது எங்கும் காணோம்.",
    "నమస్కారం! మీరు ఎలా ఉన్నారు? క్షేమం.",
    "ಕನ್ನಡ ಭಾಷೆ ಬಹಳ ಸುಂದರ.",
    "മലയാളം ഒരു മനോഹരമായ ഭാഷയാണ്.",
    "ਪੰਜਾਬੀ ਵਿੱਚ ਸਤ ਸ੍ਰੀ ਅਕਾਲ ਜੀ।",
    "ગુજરાતી ભાષા, ૧૨૩ અને કેમ છો?",
    "ශ්‍රී ලංකාව — සිංහල අක්ෂර.",
    "རྒྱ་གར་སྐད་དུ། བོད་ཡིག",
    "ᱥᱟᱱᱛᱟᱲᱤ and ꯃꯤꯇꯩ",
)
SOUTH_EAST_ASIAN = (
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "ที่นี่มีน้ำแข็งปั่น ๆ ไหม? กี่บาท",
    "ພາສາລາວ ສະບາຍດີ",
    "ខ្ញុំអាចញុំកញ្ចក់បាន ដោយគ្មានបញ្ហា។",
    "သီဟိုဠ်မှ ဉာဏ်ကြီးရှင်သည် အာယုဝဍ္ဎနဆေးညွှန်းစာကို",
    "ꦧꦱꦗꦮ and ᜊᜌ᜔ᜊᜌᜒᜈ᜔",
)
EAST_ASIAN = (
    "天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。",
    "我能吞下玻璃而不伤身体。今天天气怎么样？",
    "龘靐齉爩 𠀀𠮷𪚥 罕见字",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ",
    "吾輩は猫である。名前はまだ無い。",
    "カタカナ、ﾊﾝｶｸ、ひらがな、漢字、そしてＦｕｌｌ　ｗｉｄｔｈ。",
    "が and か\u3099 look the same; 葛󠄀 has a variation selector.",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "한글 자모: \u1112\u1161\u11ab\u1100\u1173\u11af 과 ㄱㄴㄷ.",
    "漢字とかな交じり文、100％の日本語テスト～♪",
    "粵語：你食咗飯未呀？ ㄅㄆㄇㄈ ꀀꀁꀂ",
    "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ",
)
AFRICAN_AND_OTHER = (
    "ሰማይ አይታረስ ንጉሥ አይከሰስ።",
    "ⵜⴰⵎⴰⵣⵉⵖⵜ ⵉⵎⴰⵣⵉⵖⵏ",
    "ᚠᛇᚻ᛫ᛒᛦᚦ᛫ᚠᚱᚩᚠᚢᚱ᛫ᚠᛁᚱᚪ᛫ᚷᛖᚻᚹᛦᛚᚳᚢᛗ",
    "᚛᚛ᚉᚑᚅᚔᚉᚉᚔᚋ ᚔᚈᚔ ᚍᚂᚐᚅᚑ ᚅᚔᚋᚌᚓᚅᚐ᚜",
    "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ and ᐃᓄᒃᑎᑐᑦ",
    "𓀀𓁐𓂀 𒀀𒁹 𐌰𐌱𐌲 𐤀𐤁",
    "⠓⠑⠇⠇⠕ ⠺⠕⠗⠇⠙",
)
EMOJI = (
    "😀😃😄😁😆😅🤣😂",
    "👍🏻👍🏼👍🏽👍🏾👍🏿 skin tones",
    "👨‍👩‍👧‍👦 family, 👩🏽‍💻 coder, 🧑🏿‍🚀 astronaut",
    "🏳️‍🌈 🏴‍☠️ 🏳️‍⚧️ flags that are joined",
    "🇫🇷🇯🇵🇧🇷🇿🇦 🇺🇳",
    "🏴󠁧󠁢󠁳󠁣󠁴󠁿 Scotland and 🏴󠁧󠁢󠁷󠁬󠁳󠁿 Wales",
    "1️⃣2️⃣3️⃣ #️⃣ *️⃣ keycaps",
    "❤️ ❤ ♥︎ ☺️ ☺︎ ✂️ variation selectors",
    "❤️‍🔥 ❤️‍🩹 👁️‍🗨️ 🐻‍❄️ 🐈‍⬛",
    "👩‍❤️‍💋‍👨 and 👨🏻‍🤝‍👨🏿",
    "🤷🏽‍♀️ who knows? 🙅🏾‍♂️ not me",
    "🫠🫡🫥🫶🏽🪿🫎 the newer ones",
    "I ❤️ 🍕, you ❤️ 🍣; we'll share 🍜!",
    "🎉🎊 Happy birthday!!! 🎂🥳🎁 #party",
    "e-mail 📧: a@b.c → ✅ or ❌",
    "♟️ ♔♕♖ ♠♣♥♦ 🃏 🀄",
    "🧑‍🧑‍🧒‍🧒 🧑‍🦽‍➡️ 🐦‍🔥",
    "😶‍🌫️😮‍💨😵‍💫",
)
SYMBOLS = (
    "∀x ∈ ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β = ¬(¬α ∨ β)",
    "∮ E⋅da = Q, n → ∞, ∑ f(i) = ∏ g(i)",
    "ℕ ⊆ ℕ₀ ⊂ ℤ ⊂ ℚ ⊂ ℝ ⊂ ℂ; 2H₂ + O₂ ⇌ 2H₂O",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒻𝒶𝓃𝒸𝓎 𝕕𝕠𝕦𝕓𝕝𝕖 𝟘𝟙𝟚",
    "₿ € £ ¥ ₹ ₽ ₩ ₴ ¢ ฿: 9,99 € or $10.50",
    "┌─┬─┐│ │ │├─┼─┤└─┴─┘ ░▒▓█",
    "← ↑ → ↓ ↔ ⇒ ⇔ ⟶ ⤴ ➜",
    "½ ¼ ⅔ x² y³ 10⁻⁶ m/s² 25°C ±0.5‰",
    "“curly” ‘quotes’ „low“ ‹angle› … – — • § ¶ † ‡ ™ © ®",
    "♩♪♫♬ ♭♮♯ 𝄞𝄢 ☀☁☂☃ ★☆",
)
COMBINING = (
    "e\u0301 e\u0300 o\u0302 u\u0308 n\u0303 c\u0327 a\u030a",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!",
    "\u0301 starts with a mark, ends with one o\u0308\u0301",
    "a\u20dd b\u20e3 c\u0338 x\u0305 ẛ̣",
    "q\u0307\u0323 and q\u0323\u0307; \u1e69 s\u0323\u0307",
)
INVISIBLE = (
    "zero\u200bwidth\u200cnon\u200djoiner\ufeffmark",
    "soft\u00adhyphen and no\u00a0break, thin\u2009space, \u3000ideographic",
    "line\u2028separator and paragraph\u2029separator",
    "nul\x00 bell\x07 escape\x1b[31mred\x1b[0m delete\x7f",
    "\u061carabic letter mark \u2060word joiner \u180e",
    "private \ue000\uf8ff\U000f0000 and last \U0010fffd",
)
CODE = (
    "def f(x: int) -> int:\n    return x ** 2  # quadriert\n\nprint(f(3))\n",
    'fn main() {\n\tlet s = "héllo";\n\tprintln!("{s:?}");\n}\n',
    "SELECT \"größe\" FROM häuser WHERE ort LIKE '%köln%' AND n <> 0;",
    '{"emoji": "😀", "escaped": "\\ud83d\\ude00", "list": [1, 2.5e-3, null, true]}',
    '<p class="ä">&amp; &#x1F600; <b>fett</b></p>\r\n',
    "https://example.com/pfad?q=%C3%A4&x=1#übersicht",
    "for (;;) { if (a<b && c>>=1) break; } /* 終わり */",
    "$ grep -rnE '[а-яё]+' ./src | sort -u > out.txt",
    "| naïve | 日本 |\n|:--|--:|\n| ✓ | **1** |\n",
    r"\frac{\partial f}{\partial x} = \lim_{h \to 0} \text{größer}",
    "don't, can't, I'm, we've; it 's , odd . isn't it ?",
)
WHITESPACE = (
    " leading space",
    "   three leading spaces",
    "trailing space ",
    "trailing spaces and newline   \n",
    "two  three   four    eight        spaces",
    "\tTab\t\ttwo tabs\n\n\nthree newlines\r\nwindows\r",
    "\n",
    "   ",
    " ",
    "\u2581 the mark \u2581\u2581 that stands for spaces \u2581",
)
SHORT = ("a", "é", "ё", "ש", "न", "字", "한", "😀", "👩🏽‍💻", "🇨🇭", "e\u0301", "𝄞", "0", "¿?", "...", "")

GROUPS = (
    *(LATIN, GREEK_CYRILLIC, RIGHT_TO_LEFT, INDIC, SOUTH_EAST_ASIAN, EAST_ASIAN, AFRICAN_AND_OTHER, EMOJI),
    *(SYMBOLS, COMBINING, INVISIBLE, CODE, WHITESPACE, SHORT),
)
_BASE = [text for group in GROUPS for text in group]


def _mixed() -> list[str]:
    """Neighbours that rarely meet: one text out of each two groups, joined in three ways."""
    mixed = []
    for n, (left, right) in enumerate(product(range(len(GROUPS)), repeat=2)):
        if left != right:
            glue = ("", " ", "\n")[n % 3]
            mixed.append(GROUPS[left][n % len(GROUPS[left])] + glue + GROUPS[right][n % len(GROUPS[right])])
    return mixed


TEXTS = tuple(dict.fromkeys([*_BASE, *_mixed()]))
