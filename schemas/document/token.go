package document

import "unicode"

// Weights of runes in parts of a token. They follow what common tokenizers make of running
// text on average: a token is four Latin letters, three digits, two letters of other
// alphabets, or one Chinese, Japanese or Korean character.
const (
	unit       = 24 // parts in a token, and the largest weight
	spaceParts = 3
	latinParts = 6
	digitParts = 8
	otherParts = 12 // Greek, Cyrillic, Hebrew, Arabic and similar; marks
	denseParts = 16 // Thai, Lao, Khmer, scripts of India
	signParts  = 18 // punctuation
)

// Count returns the number of tokens of a text: an estimate, the same everywhere and always.
// Each rune has a weight in 1/24 of a token: Latin letter 6, digit 8, white space 3,
// punctuation 18, letter of another alphabet 12, of Thai, Lao, Khmer or a script of India 16,
// Chinese, Japanese or Korean character and everything else 24. The sum is rounded up. So no
// rune is free, and the tokens of two texts together are never more than those of each.
func Count(text string) int { return (parts(text) + unit - 1) / unit }

func parts(text string) int {
	n := 0
	for _, r := range text {
		n += weight(r)
	}
	return n
}

func weight(r rune) int {
	switch {
	case r < 0x80:
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z':
			return latinParts
		case r >= '0' && r <= '9':
			return digitParts
		case r == ' ', r == '\n', r == '\t', r == '\r', r == '\f', r == '\v':
			return spaceParts
		}
		return signParts
	case r < 0x250:
		switch {
		case r == 0xa0, r == 0x85:
			return spaceParts
		case unicode.IsLetter(r):
			return latinParts
		}
		return signParts
	case r < 0x900:
		return otherParts
	case r < 0x1100: // scripts of India, Thai, Lao, Tibetan, Myanmar, Georgian
		return denseParts
	case r < 0x1200: // Jamo, three to a syllable
		return otherParts
	case r < 0x1e00:
		return denseParts
	case r < 0x2000:
		if r < 0x1f00 {
			return latinParts
		}
		return otherParts
	case unicode.IsSpace(r):
		return spaceParts
	case r < 0x2e80:
		return signParts
	}
	return unit
}
