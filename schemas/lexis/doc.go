// Package lexis makes words of texts, for an index of documents and for the queries that search
// it. Both go through the same steps, so what is written one way and asked another way meets.
//
// A text is normalised (NFKC, case folded, Latin accents taken off) and cut into words of letters
// and digits. An identifier (ORD-1042, order_id, createThread) gives its parts and itself. Scripts
// without spaces between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese, and Korean) give each
// pair of neighbouring characters. A word in a language that is known by its stop words is reduced
// to its stem.
//
// It is pure. Its cost grows with the length of the text; words are cut at 64 characters.
package lexis
