//! Sentences that state different facts, and such as are only written otherwise.

pub(super) const CHANGED: &[[&str; 2]] = &[
    // Numbers.
    [
        "They paid 1,000 dollars for the land.",
        "They paid 1,100 dollars for the land.",
    ],
    [
        "The sum was 3.5 percent of the whole.",
        "The sum was 3.6 percent of the whole.",
    ],
    [
        "It took them two days to arrive there.",
        "It took them four days to arrive there.",
    ],
    [
        "There were two hundred men in the fort.",
        "There were two thousand men in the fort.",
    ],
    [
        "It was signed on 4 July 1776 in the city.",
        "It was signed on 4 July 1778 in the city.",
    ],
    [
        "It was signed on the third of the month.",
        "It was signed on the fourth of the month.",
    ],
    [
        "He came in on the 21st of the month.",
        "He came in on the 22nd of the month.",
    ],
    [
        "The tax is set at 5% of all income.",
        "The tax is set at 5 of all income.",
    ],
    [
        "The parcel weighed 12 kg when it came.",
        "The parcel weighed 12 pounds when it came.",
    ],
    [
        "They gave him $50 for the old horse.",
        "They gave him £50 for the old horse.",
    ],
    [
        "It was -5 degrees in the morning.",
        "It was 5 degrees in the morning.",
    ],
    [
        "Please install version 1.2.3 of the tool.",
        "Please install version 1.2.4 of the tool.",
    ],
    [
        "The loan of millions was made by them.",
        "The loan of 7 millions was made by them.",
    ],
    [
        "They went from 5 to 7 in one year.",
        "They went from 7 to 5 in one year.",
    ],
    // Names.
    [
        "The letter was sent to Jefferson at once.",
        "The letter was sent to Madison at once.",
    ],
    [
        "Adams beat Monroe in the first vote.",
        "Monroe beat Adams in the first vote.",
    ],
    [
        "Congress has the power to declare it.",
        "Parliament has the power to declare it.",
    ],
    [
        "The envoy of Spain was heard by them.",
        "The envoy of France was heard by them.",
    ],
    [
        "They sailed for Lisbon in the spring.",
        "They sailed for Porto in the spring.",
    ],
    [
        "We asked the USA for an answer to it.",
        "We asked the UK for an answer to it.",
    ],
    [
        "See what Article II says about the matter.",
        "See what Article III says about the matter.",
    ],
    [
        "We met on Monday in the great hall.",
        "We met on Friday in the great hall.",
    ],
    [
        "The men of the north came home early.",
        "The men of Ohio the north came home early.",
    ],
    // Negations and opposites.
    [
        "The board did approve the plan.",
        "The board did not approve the plan.",
    ],
    [
        "They can leave the house at night.",
        "They can't leave the house at night.",
    ],
    [
        "They can leave the house at night.",
        "They cannot leave the house at night.",
    ],
    [
        "He has been to the old town before.",
        "He has never been to the old town before.",
    ],
    [
        "He came with the money he owed them.",
        "He came without the money he owed them.",
    ],
    [
        "All of the members voted for it.",
        "None of the members voted for it.",
    ],
    [
        "The plan was approved by the board.",
        "The plan was unapproved by the board.",
    ],
    [
        "The plan was approved by the board.",
        "The plan was rejected by the board.",
    ],
    [
        "The duty on wool was increased at once.",
        "The duty on wool was reduced at once.",
    ],
    [
        "The law allows them to enter the port.",
        "The law forbids them to enter the port.",
    ],
    [
        "They left before the vote was taken.",
        "They left after the vote was taken.",
    ],
    [
        "The setting is true for all of them.",
        "The setting is false for all of them.",
    ],
    [
        "The medicine is harmful to the young.",
        "The medicine is harmless to the young.",
    ],
    [
        "Der Rat hat den Plan genehmigt.",
        "Der Rat hat den Plan nicht genehmigt.",
    ],
    [
        "Il a mangé trois pommes ce matin.",
        "Il a mangé quatre pommes ce matin.",
    ],
    // Identifiers and operators.
    [
        "The ticket KV-48213 was closed by them.",
        "The ticket KV-48217 was closed by them.",
    ],
    [
        "Set retry_limit to the value you want.",
        "Set retry_limits to the value you want.",
    ],
    [
        "Call parseHeader with the bytes you got.",
        "Call parseFooter with the bytes you got.",
    ],
    [
        "Open the file src/app/main.rs and look.",
        "Open the file src/app/lib.rs and look.",
    ],
    [
        "Fetch it from https://a.example/x/1 now.",
        "Fetch it from https://b.example/x/1 now.",
    ],
    [
        "Write to anna@example.org about the bill.",
        "Write to hanna@example.org about the bill.",
    ],
    [
        "Look at commit c0ffee12 for the change.",
        "Look at commit c0ffee13 for the change.",
    ],
    [
        "The word at 0x1f4 is the one you want.",
        "The word at 0x1f5 is the one you want.",
    ],
    [
        "while (count == limit) { stop(count); }",
        "while (count != limit) { stop(count); }",
    ],
    [
        "while (count < limit) { stop(count); }",
        "while (count <= limit) { stop(count); }",
    ],
    [
        "let area = width + height; print(area);",
        "let area = width - height; print(area);",
    ],
    [
        "if (ready) { run_all_the_tests(now); }",
        "if (!ready) { run_all_the_tests(now); }",
    ],
    [
        "They served a 4-year term in the house.",
        "They served a 4-yard term in the house.",
    ],
    [
        "The rules of the post-1945 order were kept.",
        "The rules of the pre-1945 order were kept.",
    ],
    // Fractions, zeros, digits of other scripts.
    [
        "Take 1/2 cup of the flour you bought.",
        "Take 1/3 cup of the flour you bought.",
    ],
    [
        "Take ½ cup of the flour you bought.",
        "Take ⅓ cup of the flour you bought.",
    ],
    [
        "Take 1½ cups of the flour you bought.",
        "Take 1¼ cups of the flour you bought.",
    ],
    [
        "The code is 007 for all of them here.",
        "The code is 7 for all of them here.",
    ],
    [
        "See the ticket KV-0042 in the old list.",
        "See the ticket KV-042 in the old list.",
    ],
    [
        "They paid ٣٥ coins for the whole of it.",
        "They paid ٣٦ coins for the whole of it.",
    ],
    [
        "دفع الرجل ٣٥ درهما في ذلك اليوم",
        "دفع الرجل ٣٦ درهما في ذلك اليوم",
    ],
    [
        "उसने ५ सेब खाए और घर चला गया था",
        "उसने ६ सेब खाए और घर चला गया था",
    ],
    [
        "They paid ５ yen for the whole of it.",
        "They paid ６ yen for the whole of it.",
    ],
    // Units.
    [
        "The dose was 5 mg for each of them.",
        "The dose was 5 g for each of them.",
    ],
    [
        "The dose was 5 mg for each of them.",
        "The dose was 5 µg for each of them.",
    ],
    [
        "The dose was 5 mg for each of them.",
        "The dose was 5 mcg for each of them.",
    ],
    [
        "The size was 5 bits in all of them.",
        "The size was 5 bytes in all of them.",
    ],
    [
        "Add 2 tsp of the salt that you bought.",
        "Add 2 tbsp of the salt that you bought.",
    ],
    // Names in lower case.
    [
        "they met on monday in the great hall.",
        "they met on friday in the great hall.",
    ],
    [
        "the envoy of spain was heard by them.",
        "the envoy of france was heard by them.",
    ],
    // Russian.
    [
        "Совет одобрил план на этой неделе.",
        "Совет не одобрил план на этой неделе.",
    ],
    [
        "У них есть план на эту неделю.",
        "У них нет плана на эту неделю.",
    ],
    [
        "Он знал одно слово об этом деле.",
        "Он не знал ни слова об этом деле.",
    ],
    [
        "Он пришёл с планом на эту неделю.",
        "Он пришёл без плана на эту неделю.",
    ],
    // At an end.
    [
        "1812 was the year in which it began.",
        "1813 was the year in which it began.",
    ],
    [
        "The year in which it all began was 1812",
        "The year in which it all began was 1813",
    ],
    [
        "The year in which it began was 1812 indeed",
        "The year in which it began was 1813 indeed",
    ],
];

pub(super) const UNCHANGED: &[[&str; 2]] = &[
    [
        "It went well, and they were glad of it.",
        "It went well and they were glad of it.",
    ],
    [
        "He said \"yes\" to all that they asked.",
        "He said “yes” to all that they asked.",
    ],
    [
        "They don't know what came of it all.",
        "They do not know what came of it all.",
    ],
    [
        "They can't know what came of it all.",
        "They cannot know what came of it all.",
    ],
    [
        "It's not what the old man had said.",
        "It’s not what the old man had said.",
    ],
    [
        "There were 20 men in the small boat.",
        "There were twenty men in the small boat.",
    ],
    [
        "There were 21 men in the small boat.",
        "There were twenty-one men in the small boat.",
    ],
    [
        "They paid 1,000 for the whole of it.",
        "They paid 1000 for the whole of it.",
    ],
    [
        "They paid 1.5 million for all of it.",
        "They paid 1,500,000 for all of it.",
    ],
    [
        "They paid two hundred and five for it.",
        "They paid 205 for the whole of it.",
    ],
    [
        "They paid $5 for the old brown horse.",
        "They paid 5 dollars for the old brown horse.",
    ],
    [
        "The tax was 5% of all that they had.",
        "The tax was 5 per cent of all that they had.",
    ],
    [
        "They walked 5km on the muddy road.",
        "They walked 5 kilometres on the muddy road.",
    ],
    [
        "It was on the 3rd day of the voyage.",
        "It was on the third day of the voyage.",
    ],
    [
        "The colour of the centre was organised.",
        "The color of the center was organized.",
    ],
    [
        "The Labour party met in the town hall.",
        "The Labor party met in the town hall.",
    ],
    [
        "They began the work on the new road.",
        "They started the work on the new road.",
    ],
    [
        "It was a large house by the river side.",
        "It was a big house by the river side.",
    ],
    [
        "However, they were glad of the answer.",
        "Nevertheless, they were glad of the answer.",
    ],
    [
        "Clearly, they were glad of the answer.",
        "Obviously, they were glad of the answer.",
    ],
    [
        "The Government was glad of the answer.",
        "The government was glad of the answer.",
    ],
    [
        "He saw the fellow-citizens of the town.",
        "He saw the fellow citizens of the town.",
    ],
    [
        "He was not glad of the answer he got.",
        "He was never glad of the answer he got.",
    ],
    [
        "It was not allowed to enter the port.",
        "It was forbidden to enter the port.",
    ],
    [
        "It was not approved by the old board.",
        "It was unapproved by the old board.",
    ],
    [
        "They saw Spain and France in one year.",
        "They saw France and Spain in one year.",
    ],
    [
        "They asked the USA for an answer to it.",
        "They asked the United States for an answer to it.",
    ],
    [
        "They met Mr. Adams in the great hall.",
        "They met Mister Adams in the great hall.",
    ],
    [
        "It was on 4 Jan. that they had met him.",
        "It was on 4 January that they had met him.",
    ],
    [
        "It was a day - a fine one - to travel.",
        "It was a day, a fine one, to travel.",
    ],
    [
        "It was a day -- a fine one -- to travel.",
        "It was a day—a fine one—to travel.",
    ],
    [
        "They  went   home\nby the same road.",
        "They went home by the same road.",
    ],
    [
        "They went home by the same road.",
        "They also went home by the same road.",
    ],
    [
        "a = b + c; print(a); return the result",
        "a=b+c; print(a); return the result",
    ],
    [
        "They paid ٣٥ coins for the whole of it.",
        "They paid 35 coins for the whole of it.",
    ],
    [
        "Take ½ of all the flour you bought.",
        "Take 1/2 of all the flour you bought.",
    ],
    [
        "Take 1½ cups of the flour you bought.",
        "Take 1 1/2 cups of the flour you bought.",
    ],
    [
        "It was at 07:30 on the same old day.",
        "It was at 7:30 on the same old day.",
    ],
    [
        "The dose was 5 µg for each of them.",
        "The dose was 5 micrograms for each of them.",
    ],
    [
        "They met on Monday in the great hall.",
        "they met on monday in the great hall",
    ],
    [
        "Совет одобрил план на этой неделе.",
        "совет одобрил план, на этой неделе",
    ],
    [
        "Совет принял план на этой неделе.",
        "Совет одобрил план на этой неделе.",
    ],
    [
        "The **old** road was closed that year.",
        "The old road was closed that year.",
    ],
];
