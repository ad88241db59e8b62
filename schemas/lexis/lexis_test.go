package lexis

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// finds reports whether a query finds a text: each of its words has an alternative there.
func finds(query, text string) bool {
	terms, _ := Index(text)
	q := Parse(query)
	if len(q.Words) == 0 {
		return false
	}
	for _, w := range q.Words {
		if !slices.ContainsFunc(w, func(a string) bool {
			return slices.ContainsFunc(terms, func(t Term) bool { return t.Word == a })
		}) {
			return false
		}
	}
	return true
}

func TestWhatIsFound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		query, text string
		want        bool
	}{
		{"refund", "We refunded the order.", true},
		{"refunding", "We refunded the order.", true},
		{"order", "All the orders of the day", true},
		{"Bestellung", "Die Bestellungen sind bei uns", true},
		{"Rückgabe", "Die RÜCKGABE ist in der Filiale möglich", true},
		{"ruckgabe", "Die Rückgabe ist nicht möglich", true},
		{"remboursements", "le remboursement de la commande", true},
		{"café", "the cafe\u0301 is open", true}, // NFD
		{"ＡＢＣ", "abc", true},                     // full width
		{"ORD-1042", "Your order ord-1042 was sent", true},
		{"ORD1042", "Your order ORD-1042 was sent", true},
		{"1042", "Your order ORD-1042 was sent", true},
		{"order_id", "the field order_id", true},
		{"thread", "call createThread first", true},
		{"createthread", "call createThread first", true},
		{"退款", "订单的退款需要三天", true},
		{"返金", "ご注文の返金は三日かかります", true},
		{"คืนเงิน", "การคืนเงินใช้เวลาสามวัน", true},
		{"환불", "주문의환불은 사흘 걸립니다", true},
		{"退货", "订单的退款需要三天", false},
		{marks, "ก่อน " + marks + " หลัง", true},
		{marks, "การคืนเงินใช้เวลาสามวัน", false},
		{"the refund", "We refund.", true}, // stop words are left out
		{"the", "the end", true},           // unless there is nothing else
		{"invoice", "We refunded the order.", false},
		{"", "text", false},
		{`"'\&|!():*<->`, "text", false},
	} {
		if got := finds(c.query, c.text); got != c.want {
			t.Errorf("%q in %q: %v", c.query, c.text, got)
		}
	}
}

// marks is a character with more marks than any word has.
var marks = "ก" + strings.Repeat("ั", 700)

func TestParse(t *testing.T) {
	t.Parallel()
	q := Parse(`"express delivery" of parcels to Ber`)
	if len(q.Phrases) != 1 || len(q.Phrases[0]) != 2 || q.Words[q.Phrases[0][1]][0] != "delivery" || q.Last != "ber" {
		t.Errorf("%+v", q)
	}
	if q := Parse("delivery "); q.Last != "" {
		t.Errorf("a finished word: %+v", q)
	}
	for query, want := range map[string]int{ // the place of an unfinished last word; -1: there is none
		"refund ber": 1, "refund ber ": -1, "refund to": -1, "to": 0, "to the": 1, `"refund" to`: -1, `"refund" ber`: 1,
		"shoes red shoes": 0, `"red shoes" red`: 2, "order-1042 ber": 3, "ber order-1042": -1, strings.Repeat("word ", maxQueryWords) + "ber": -1,
	} {
		switch q := Parse(query); {
		case want < 0 && q.Last != "":
			t.Errorf("%s: %q is unfinished", query, q.Last)
		case want >= 0 && (q.Last == "" || q.LastAt != want || q.Words[q.LastAt][0] != q.Last):
			t.Errorf("%s: %q at %d of %v is unfinished", query, q.Last, q.LastAt, q.Words)
		}
	}
	if q := Parse(`"open`); len(q.Phrases) != 0 || len(q.Words) != 1 {
		t.Errorf("an open quote: %+v", q)
	}
	if q := Parse(strings.Repeat("word another ", 1000)); len(q.Words) > maxQueryWords {
		t.Errorf("%d words", len(q.Words))
	}
}

// longest bounds a word in bytes: Postgres takes lexemes of less than 2,047, and a mark of the base stands
// before each.
const longest = 1024

// Whatever the text, words are valid, short and found again by themselves.
func TestLaws(t *testing.T) {
	t.Parallel()
	runes := rapid.OneOf(rapid.Rune(), rapid.SampledFrom([]rune("aé-_ กงั้ကံ가ば゙退\u0301\u0345")))
	texts := rapid.Custom(func(t *rapid.T) (text string) {
		for range rapid.IntRange(0, 12).Draw(t, "parts") {
			text += strings.Repeat(string(runes.Draw(t, "character")), rapid.SampledFrom([]int{1, 1, 1, 2, 700}).Draw(t, "times"))
		}
		return text
	})
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), texts).Draw(t, "text")
		terms, length := Index(text)
		last := ""
		for _, term := range terms {
			if term.Word == "" || term.Word <= last || !utf8.ValidString(term.Word) || utf8.RuneCountInString(term.Word) > 2*maxWord || len(term.Word) > longest {
				t.Fatalf("the term %q behind %q", term.Word, last)
			}
			last = term.Word
			if !slices.IsSorted(term.Positions) || term.Positions[0] < 1 || term.Positions[len(term.Positions)-1] > max(length, 1) {
				t.Fatalf("%q at %v of %d", term.Word, term.Positions, length)
			}
		}
		for _, alternatives := range Parse(text).Words {
			for _, word := range alternatives {
				if len(word) > longest {
					t.Fatalf("a query looks for %q", word)
				}
			}
		}
		if words := Words(text); len(words) > 0 && len(words) < maxQueryWords && !strings.Contains(text, `"`) && !finds(text, text) {
			t.Fatalf("%q does not find itself", text)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add(`"a b" c-d_E 退款`)
	f.Add(marks)
	f.Fuzz(func(t *testing.T, text string) {
		q := Parse(text)
		if len(q.Last) > longest {
			t.Errorf("a query looks for words that begin with %q", q.Last)
		}
		if q.Last != "" && (q.LastAt >= len(q.Words) || q.Words[q.LastAt][0] != q.Last) {
			t.Errorf("%q is word %d of %v", q.Last, q.LastAt, q.Words)
		}
		for _, w := range q.Words {
			for _, a := range w {
				if len(a) > longest {
					t.Errorf("a query looks for %q", a)
				}
			}
		}
		terms, _ := Index(text)
		for _, term := range terms {
			if len(term.Word) > longest {
				t.Errorf("the term %q", term.Word)
			}
		}
	})
}
