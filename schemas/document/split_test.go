package document

import (
	"errors"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"
)

func split(t testing.TB, c Chunking, blocks ...Block) []Chunk {
	t.Helper()
	var out []Chunk
	s := NewSplitter(c, func(c Chunk) error { out = append(out, c); return nil })
	for _, b := range blocks {
		if err := s.Push(b); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := s.Close(); err != nil || n != len(out) {
		t.Fatal(n, err)
	}
	return out
}

func texts(chunks []Chunk) []string {
	var out []string
	for _, c := range chunks {
		out = append(out, c.Text)
	}
	return out
}

func same(t *testing.T, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d chunks %q, want %q", len(got), got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("chunk %d is %q, want %q", i, got[i], want[i])
		}
	}
}

func TestHeadingsBeginChunksAndTheirPathIsContext(t *testing.T) {
	t.Parallel()
	chunks := split(t, Chunking{MaxTokens: 100},
		Block{Text: "Before all headings."},
		Block{Kind: Heading, Level: 1, Text: "Guide"},
		Block{Kind: Heading, Level: 2, Text: "Install"},
		Block{Text: "Take the package."},
		Block{Text: "Start it."},
		Block{Kind: Heading, Level: 3, Text: "On Linux"},
		Block{Kind: List, Level: 1, Text: "one"},
		Block{Kind: List, Level: 1, Text: "two"},
		Block{Kind: Heading, Level: 2, Text: "Use"},
		Block{Text: "As you like."})
	same(t, texts(chunks), "Before all headings.", "Guide\nInstall\nTake the package.\n\nStart it.", "On Linux\none\ntwo", "Use\nAs you like.")
	for i, want := range []string{"", "Guide › Install", "Guide › Install › On Linux", "Guide › Use"} {
		if chunks[i].Heading != want || chunks[i].Position != i || chunks[i].Overlap != 0 {
			t.Errorf("chunk %d: %+v, want the heading %q", i, chunks[i], want)
		}
	}
}

func TestRowsCarryTheirHeader(t *testing.T) {
	t.Parallel()
	row := func(text string) Block { return Block{Kind: Row, Header: "Name\tCity", Text: text} }
	// The header is three tokens, a row four.
	chunks := split(t, Chunking{MaxTokens: 12, OverlapTokens: 4}, row("Alice Adams\tOslo"), row("Bob Barker\tRome"), row("Carla Conti\tBari"), row("\tlost"))
	same(t, texts(chunks), "Name\tCity\nAlice Adams\tOslo\nBob Barker\tRome", "Name\tCity\nCarla Conti\tBari\n\tlost")
	if chunks[0].Overlap != 0 || chunks[1].Overlap != len("Name\tCity\n") {
		t.Errorf("overlaps %d and %d", chunks[0].Overlap, chunks[1].Overlap)
	}
}

func TestAnOverlongRowIsCutUnderItsHeader(t *testing.T) {
	t.Parallel()
	long := strings.TrimSpace(strings.Repeat("word ", 40))
	chunks := split(t, Chunking{MaxTokens: 20}, Block{Kind: Row, Header: "Text", Text: long})
	if len(chunks) < 3 {
		t.Fatal(texts(chunks))
	}
	for _, c := range chunks {
		if !strings.HasPrefix(c.Text, "Text\nword") {
			t.Errorf("a chunk is %q", c.Text)
		}
	}
}

func TestPagesBeginChunks(t *testing.T) {
	t.Parallel()
	chunks := split(t, Chunking{MaxTokens: 50, OverlapTokens: 10},
		Block{Text: "The first page ends here.", Page: 1}, Block{Text: "The second page.", Page: 2},
		Block{Kind: Heading, Level: 1, Text: "Third", Page: 3}, Block{Text: "The end.", Page: 3})
	same(t, texts(chunks), "The first page ends here.", "The first page ends here.\nThe second page.", "Third\nThe end.")
	for i, c := range chunks {
		if c.Page != i+1 {
			t.Errorf("chunk %d is of page %d", i, c.Page)
		}
	}
}

func TestOverlapBeginsWithASentenceOrAWord(t *testing.T) {
	t.Parallel()
	chunks := split(t, Chunking{MaxTokens: 16, OverlapTokens: 8}, Block{Text: "The ship left the harbour at dawn. It was cold. Nobody on board had slept at all that night. They sailed west."})
	if len(chunks) < 2 || !strings.HasPrefix(chunks[1].Text, "It was cold. Nobody") || chunks[1].Text[:chunks[1].Overlap] != "It was cold. " {
		t.Errorf("%q, overlap %d", texts(chunks), chunks[1].Overlap)
	}
	chunks = split(t, Chunking{MaxTokens: 16, OverlapTokens: 4}, Block{Text: strings.Repeat("alpha beta gamma delta ", 10)})
	for _, c := range chunks[1:] {
		first, _, _ := strings.Cut(c.Text, " ")
		if c.Overlap == 0 || !strings.Contains("alpha beta gamma delta", first) {
			t.Errorf("%q, overlap %d", c.Text, c.Overlap)
		}
	}
}

func TestParagraphsStayWhole(t *testing.T) {
	t.Parallel()
	half := strings.TrimSpace(strings.Repeat("word ", 16)) // about 18 tokens
	chunks := split(t, Chunking{MaxTokens: 30}, Block{Text: half}, Block{Text: half}, Block{Text: half})
	same(t, texts(chunks), half, half, half)
}

func TestCuts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, text string
		max        int
		want       []string
	}{
		{"an over-long word is cut between runes", strings.Repeat("é", 20), 2, []string{"éééééééé", "éééééééé", "éééé"}},
		{"a mark stays with its letter", "e\u0301e\u0301e\u0301", 1, []string{"e\u0301", "e\u0301", "e\u0301"}},
		{"Chinese is cut between sentences", "今天天气很好。我们去公园吧。好。", 8, []string{"今天天气很好。", "我们去公园吧。", "好。"}},
		{"Chinese without punctuation is cut anywhere", "今天天气很好我们去公园吧", 5, []string{"今天天气很", "好我们去公", "园吧"}},
		{"sentences", "One is here. Two is there. Three.", 5, []string{"One is here.", "Two is there.", "Three."}},
		{"lines of code keep their indentation", "", 0, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.max == 0 {
				same(t, texts(split(t, Chunking{MaxTokens: 6}, Block{Kind: Code, Text: "\nfunc f() {\n    return 1\n}\n"})), "func f() {", "    return 1\n}")
				return
			}
			same(t, texts(split(t, Chunking{MaxTokens: test.max}, Block{Text: test.text})), test.want...)
		})
	}
}

func TestContinuedBlocksAreOneText(t *testing.T) {
	t.Parallel()
	same(t, texts(split(t, Chunking{}, Block{Text: "one wo"}, Block{Text: "rd and ", Continues: true}, Block{Text: "more", Continues: true}, Block{Text: "next"})), "one word and more\n\nnext")
}

func TestAnErrorOfTheSinkEndsTheSplitter(t *testing.T) {
	t.Parallel()
	full := errors.New("full")
	calls := 0
	s := NewSplitter(Chunking{MaxTokens: 1}, func(Chunk) error { calls++; return full })
	if err := s.Push(Block{Text: "one two three"}); !errors.Is(err, full) {
		t.Error(err)
	}
	if err := s.Push(Block{Text: "four"}); !errors.Is(err, full) {
		t.Error(err)
	}
	if _, err := s.Close(); !errors.Is(err, full) || calls != 1 {
		t.Error(err, calls)
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"": 0, "a": 1, "word": 1, "Four score and seven years ago": 7, "2026": 2, "今天天气很好": 6, "สวัสดี": 4, "Привет": 3, "\U0001F600": 1, "\xff": 1,
	} {
		if got := Count(text); got != want {
			t.Errorf("Count(%q) = %d, want %d", text, got, want)
		}
	}
}

var alphabet = []rune("aZ09 .,!\n\té漢字。かไทยเ\u0301\u200d\U0001F600\uFFFDя،")

func blocksOf(t *rapid.T) []Block {
	text := rapid.OneOf(
		rapid.StringOfN(rapid.SampledFrom(alphabet), 0, 80, -1),
		rapid.Custom(func(t *rapid.T) string {
			return strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"word", "longer", "sentence.", "end!", "x"}), 0, 60).Draw(t, "words"), " ")
		}),
		rapid.String(),
	)
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Block {
		b := Block{Kind: Kind(rapid.IntRange(0, 4).Draw(t, "kind")), Level: rapid.IntRange(0, 4).Draw(t, "level"), Text: text.Draw(t, "text"), Page: rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "page")}
		if b.Kind == Row {
			b.Header = rapid.SampledFrom([]string{"", "Name\tCity", "A header that is rather long for a small chunk"}).Draw(t, "header")
		}
		return b
	}), 0, 12).Draw(t, "blocks")
}

// letters is a text without white space.
func letters(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, text)
}

// Laws of every cut: no chunk above the maximum, positions without gaps, one page for each
// chunk, the same again, and the text without what is repeated is the whole text in order.
func TestLaws(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		blocks := blocksOf(rt)
		c := Chunking{MaxTokens: rapid.SampledFrom([]int{1, 2, 3, 5, 8, 20, 100}).Draw(rt, "max"), OverlapTokens: rapid.SampledFrom([]int{0, 1, 4, 30}).Draw(rt, "overlap")}
		chunks := split(t, c, blocks...)
		var got strings.Builder
		for i, k := range chunks {
			if k.Position != i {
				rt.Fatalf("chunk %d has the position %d", i, k.Position)
			}
			if k.Tokens > c.MaxTokens || k.Tokens != Count(k.Text) {
				rt.Fatalf("chunk %d has %d tokens, said to be %d, at most %d: %q", i, Count(k.Text), k.Tokens, c.MaxTokens, k.Text)
			}
			if k.Overlap < 0 || k.Overlap >= len(k.Text) || strings.TrimSpace(k.Text[k.Overlap:]) == "" {
				rt.Fatalf("chunk %d is a repetition: %q, %d", i, k.Text, k.Overlap)
			}
			got.WriteString(k.Text[k.Overlap:])
		}
		// Each header is there once for its table.
		var want strings.Builder
		header, page := "", -1
		for _, b := range blocks {
			if strings.TrimSpace(b.Text) == "" {
				continue
			}
			if b.Kind != Row || b.Header == "" {
				header = ""
			} else if b.Header != header {
				header = b.Header
				want.WriteString(header)
			}
			page = b.Page
			want.WriteString(b.Text)
		}
		if len(chunks) > 0 && chunks[len(chunks)-1].Page != page {
			rt.Fatalf("the last page is %d, want %d", chunks[len(chunks)-1].Page, page)
		}
		if letters(got.String()) != letters(want.String()) {
			rt.Fatalf("the text is\n%q\nwant\n%q", letters(got.String()), letters(want.String()))
		}
		again := split(t, c, blocks...)
		for i := range again {
			if again[i] != chunks[i] {
				rt.Fatalf("chunk %d differs", i)
			}
		}
	})
}

// A splitter holds one chunk, and its time grows with the text: a text in one long block of one
// word or many costs what its bytes cost.
func TestLongBlocks(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"one word": strings.Repeat("x", 1<<18), "marks": strings.Repeat("\u0301", 1<<17), "words": strings.Repeat("word ", 1<<16), "Thai": strings.Repeat("ไทย", 1<<15)} {
		n := 0
		for _, c := range split(t, Chunking{MaxTokens: 50, OverlapTokens: 20}, Block{Text: text}) {
			n += len(letters(c.Text[c.Overlap:]))
		}
		if n != len(letters(text)) {
			t.Errorf("%s: %d bytes of %d", name, n, len(text))
		}
	}
}
