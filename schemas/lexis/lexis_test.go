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

func TestParse(t *testing.T) {
	t.Parallel()
	q := Parse(`"express delivery" of parcels to Ber`)
	if len(q.Phrases) != 1 || len(q.Phrases[0]) != 2 || q.Words[q.Phrases[0][1]][0] != "delivery" || q.Last != "ber" {
		t.Errorf("%+v", q)
	}
	if q := Parse("delivery "); q.Last != "" {
		t.Errorf("a finished word: %+v", q)
	}
	if q := Parse(`"open`); len(q.Phrases) != 0 || len(q.Words) != 1 {
		t.Errorf("an open quote: %+v", q)
	}
	if q := Parse(strings.Repeat("word another ", 1000)); len(q.Words) > maxQueryWords {
		t.Errorf("%d words", len(q.Words))
	}
}

// Whatever the text, words are valid, short and found again by themselves.
func TestLaws(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		terms, length := Index(text)
		last := ""
		for _, term := range terms {
			if term.Word == "" || term.Word <= last || !utf8.ValidString(term.Word) || utf8.RuneCountInString(term.Word) > 2*maxWord {
				t.Fatalf("the term %q behind %q", term.Word, last)
			}
			last = term.Word
			if !slices.IsSorted(term.Positions) || term.Positions[0] < 1 || term.Positions[len(term.Positions)-1] > max(length, 1) {
				t.Fatalf("%q at %v of %d", term.Word, term.Positions, length)
			}
		}
		if words := Words(text); len(words) > 0 && len(words) < maxQueryWords && !strings.Contains(text, `"`) && !finds(text, text) {
			t.Fatalf("%q does not find itself", text)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add(`"a b" c-d_E 退款`)
	f.Fuzz(func(t *testing.T, text string) {
		Parse(text)
		Index(text)
	})
}
