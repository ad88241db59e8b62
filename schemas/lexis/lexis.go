package lexis

import (
	"hash/fnv"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// maxWord bounds a word, in characters; in a script without spaces it bounds a character with its
// marks, in bytes. The index takes no word of 2 KiB.
const maxWord = 64

// Term is a word of an indexed text.
type Term struct {
	Word      string
	Positions []int // from 1, in the order of the text
}

// Hash returns the number that stands for a word in packed lists.
func Hash(word string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(word)) //nolint:errcheck // it never fails
	return h.Sum32()
}

// Index returns the terms of a text, sorted by word, and how many words the text has.
func Index(text string) (terms []Term, length int) {
	words := split(text)
	stem := stemmers[guess(words)]
	at := map[string]int{}
	for _, w := range words {
		word := w.text
		if stem != nil && !w.fixed {
			word = stem(word)
		}
		if !w.whole {
			length++
		}
		i, ok := at[word]
		if !ok {
			i = len(terms)
			at[word] = i
			terms = append(terms, Term{Word: word})
		}
		terms[i].Positions = append(terms[i].Positions, max(length, 1))
	}
	slices.SortFunc(terms, func(a, b Term) int { return strings.Compare(a.Word, b.Word) })
	return terms, length
}

// Query is what a search looks for.
type Query struct {
	// Words are the words of the query. Each is a list of alternatives: the word itself and its
	// stems in the languages of the index.
	Words [][]string
	// Phrases are sequences of words that stood in quotes: indexes into Words.
	Phrases [][]int
	// Last is the last word, unfinished perhaps, which also matches as the beginning of a word;
	// empty if the query ends with something else. LastAt is its place in Words.
	Last   string
	LastAt int
}

// maxQueryWords bounds the work of a query.
const maxQueryWords = 64

// Parse reads a query. Stop words are left out unless there is nothing else.
func Parse(text string) Query {
	var q Query
	var all []word
	quoted, cut := false, false
	for i, part := range strings.Split(text, `"`) {
		words := split(part)
		var phrase []int
		for _, w := range words {
			if cut = len(all) == maxQueryWords; cut {
				break
			}
			phrase = append(phrase, len(all))
			all = append(all, w)
		}
		if i%2 == 1 && strings.Count(text, `"`) > i { // a pair of quotes
			plain := slices.DeleteFunc(slices.Clone(phrase), func(i int) bool { return all[i].whole })
			if len(plain) > 1 {
				q.Phrases = append(q.Phrases, plain)
			}
			quoted = quoted || len(plain) > 0
		}
	}
	language := guess(all)
	stops := func(w word) bool { return stopWords[language][w.text] || language == "" && stopWords["en"][w.text] }
	content := slices.DeleteFunc(slices.Clone(all), stops)
	kept := all
	if !quoted && len(content) > 0 {
		kept = content
	}
	at := map[string]int{}
	for _, w := range kept {
		if _, ok := at[w.text]; ok && !quoted { // phrases name words by their places
			continue
		}
		at[w.text] = len(q.Words)
		q.Words = append(q.Words, alternatives(w))
	}
	if n := len(all); n > 0 && !cut && !endsWord(text) {
		last := all[n-1]
		stop := len(content) > 0 && stops(last) // a finished word, which begins too many others
		if !last.fixed && !stop && len([]rune(last.text)) >= 2 {
			q.Last, q.LastAt = last.text, at[last.text]
		}
	}
	return q
}

// endsWord reports whether the text ends with something that ends its last word.
func endsWord(text string) bool {
	r := []rune(text)
	return len(r) == 0 || !unicode.IsLetter(r[len(r)-1]) && !unicode.IsDigit(r[len(r)-1])
}

func alternatives(w word) []string {
	list := []string{w.text}
	if w.fixed {
		return list
	}
	for _, language := range languages {
		if s := stemmers[language](w.text); !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// Words returns the words of a text as they are compared, without stems.
func Words(text string) []string {
	words := split(text)
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = w.text
	}
	return out
}

// word is a word of a text.
type word struct {
	text  string
	fixed bool // never reduced to a stem: it has digits, or is part of a script without spaces
	whole bool // an identifier whose parts stand before it
}

var fold = cases.Fold()

// split returns the words of a text, normalised.
func split(text string) (words []word) {
	text = norm.NFKC.String(text)
	runes := []rune(text)
	for i := 0; i < len(runes); {
		switch {
		case dense(runes[i]):
			j := i
			for j < len(runes) && (dense(runes[j]) || unicode.Is(unicode.Mn, runes[j])) {
				j++
			}
			words = append(words, pairs(runes[i:j])...)
			i = j
		case letter(runes[i]):
			j := i
			for j < len(runes) && !dense(runes[j]) && (letter(runes[j]) || unicode.Is(unicode.M, runes[j]) ||
				joins(runes[j]) && j+1 < len(runes) && letter(runes[j+1]) && !dense(runes[j+1])) {
				j++
			}
			words = append(words, identifier(runes[i:j])...)
			i = j
		default:
			i++
		}
	}
	return words
}

func letter(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

// joins reports whether a sign inside a word may be part of an identifier.
func joins(r rune) bool {
	switch r {
	case '-', '_', '.', '\'', '’', '/', ':', '@':
		return true
	}
	return false
}

// dense reports whether a script has no spaces between its words, or endings that hide them.
func dense(r rune) bool {
	return r >= 0x0E00 && unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar, unicode.Hangul)
}

// pairs returns each two neighbouring characters. A mark belongs to the character before it; marks of
// one that has many are left out.
func pairs(runes []rune) (words []word) {
	var chars []string
	for _, r := range runes {
		if unicode.Is(unicode.Mn, r) && len(chars) > 0 {
			if last := &chars[len(chars)-1]; len(*last) < maxWord {
				*last += string(r)
			}
			continue
		}
		chars = append(chars, string(r))
	}
	if len(chars) == 1 {
		return []word{{text: chars[0], fixed: true}}
	}
	for i := 0; i+1 < len(chars); i++ {
		words = append(words, word{text: chars[i] + chars[i+1], fixed: true})
	}
	return words
}

// identifier returns the parts of a word with joining signs or mixed case, and then the whole.
func identifier(runes []rune) (words []word) {
	var parts []string
	start := 0
	cut := func(end int) {
		if end > start {
			if p := plain(string(runes[start:end])); p != "" {
				parts = append(parts, p)
			}
		}
		start = end
	}
	for i, r := range runes {
		switch {
		case joins(r):
			cut(i)
			start = i + 1
		case i > start && unicode.IsUpper(r) && unicode.IsLower(runes[i-1]):
			cut(i)
		}
	}
	cut(len(runes))
	for _, p := range parts {
		words = append(words, word{text: p, fixed: strings.IndexFunc(p, unicode.IsDigit) >= 0})
	}
	if len(parts) > 1 {
		words = append(words, word{text: short(strings.Join(parts, "")), fixed: true, whole: true})
	}
	return words
}

// plain folds the case of a word and takes off the accents of Latin, Greek and Cyrillic letters.
func plain(s string) string {
	ascii := true
	for i := 0; i < len(s); i++ {
		ascii = ascii && s[i] < 0x80
	}
	if ascii {
		return short(strings.ToLower(s))
	}
	s = strings.Map(func(r rune) rune {
		if r >= 0x0300 && r <= 0x036F {
			return -1
		}
		return r
	}, norm.NFD.String(fold.String(s)))
	return short(norm.NFC.String(s))
}

func short(s string) string {
	n := 0
	for i := range s {
		if n == maxWord {
			return s[:i]
		}
		n++
	}
	return s
}
