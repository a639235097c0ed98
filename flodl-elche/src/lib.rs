//! ElChe: a pure scheduler that gives unequal devices unequal work between two model averages.
