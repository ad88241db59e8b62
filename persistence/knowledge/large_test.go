package knowledge

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"agentsvc/schemas/knowledge"
)

// A base counts as large from a few chunks on.
func large(t *testing.T, most, wide int) *world {
	t.Helper()
	w := newWorld(t)
	w.index.most, w.index.wide = most, wide
	return w
}

// In a base whose frequent words occur in more chunks than are ranked, a chunk with a rare word is found, and so
// is one that has all the words: whatever was written first.
func TestSearchesOfALargeBase(t *testing.T) {
	t.Parallel()
	w := large(t, 50, 40)
	for i := range 10 {
		texts := make([]string, 30)
		for j := range texts {
			texts[j] = fmt.Sprintf("shoes and boots number %d%02d with laces of leather", i, j)
			if j%2 == 0 {
				texts[j] = fmt.Sprintf("shoes and hats number %d%02d with ribbons of silk", i, j)
			}
		}
		w.add(fmt.Sprint("shelf ", i), nil, texts...)
	}
	w.add("zebra", nil, "shoes of a zebra")
	w.add("both", nil, "boots with ribbons, in one sentence of twelve words, which others have not")
	w.add("unfinished", nil, "shoes of an ornithologist")
	for query, want := range map[string]string{
		"shoes zebra": "zebra", "zebra shoes": "zebra", "which boots have ribbons": "both", "ornithol": "unfinished", "shoez zebrra": "zebra", "shoes laces zebra ribbons": "zebra",
	} {
		if hits := w.search(query); len(hits) == 0 || hits[0].DocumentName != want {
			t.Errorf("%q: first of %d is %+v, want %s", query, len(hits), hits[:min(1, len(hits))], want)
		}
	}
	if got := w.names("boots ornithol"); !strings.Contains(got, "unfinished") {
		t.Errorf("found %q", got)
	}
	for _, h := range w.search("shoes boots zebra") {
		if h.Score <= 0 || h.Score > 1 {
			t.Errorf("a score of %v", h.Score)
		}
	}
}

// A phrase brings its share of a large base, and each other word its own of the chunks that have the phrase.
func TestPhrasesOfALargeBase(t *testing.T) {
	t.Parallel()
	w := large(t, 50, 40)
	w.index.phrased = 20
	for i := range 10 {
		texts := make([]string, 30)
		for j := range texts {
			texts[j] = fmt.Sprintf("boots of brown leather number %d%02d", i, j)
		}
		w.add(fmt.Sprint("shelf ", i), nil, texts...)
	}
	w.add("apart", nil, "zebra leather, and brown boots")
	w.add("zebra", nil, "a zebra, and shoes of brown leather")
	w.add("rare", nil, "black leather of an okapi")
	w.add("secret", []string{"group:board"}, "brown leather of an ocelot")
	for query, want := range map[string]string{`"brown leather" zebra`: "zebra", `zebra "brown leather"`: "zebra", `"black leather"`: "rare", `"brown leather" "black leather"`: "", `"brown leather" ocelot`: "shelf"} {
		hits := w.search(query)
		if len(hits) == 0 && want != "" || len(hits) > 0 && (want == "" || !strings.HasPrefix(hits[0].DocumentName, want)) {
			t.Errorf("%s: first of %d is %+v, want %q", query, len(hits), hits[:min(1, len(hits))], want)
		}
		for _, h := range hits {
			if h.DocumentName == "apart" || h.DocumentName == "secret" || h.Score <= 0 || h.Score > 1 {
				t.Errorf("%s: found %+v", query, h)
			}
		}
	}
	if got := w.names(`"brown leather" ocelot`, "group:board"); !strings.HasPrefix(got, "secret") {
		t.Errorf("the board finds %q", got)
	}
}

// Where no word is frequent, a large base is ranked as a small one is.
func TestALargeBaseIsRankedAsASmallOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 8 {
		texts := make([]string, 10)
		for j := range texts {
			for range 5 + r.IntN(20) {
				texts[j] += zipf(r) + " "
			}
		}
		w.add(fmt.Sprint(i), nil, texts...)
	}
	shown := func(hits []knowledge.Hit) (list []string) {
		for _, h := range hits {
			list = append(list, fmt.Sprintf("%s/%d %.9f", h.DocumentName, h.Position, h.Score))
		}
		return list
	}
	for range 40 {
		var words []string
		for range 1 + r.IntN(5) {
			words = append(words, zipf(r))
		}
		query := strings.Join(words, " ") + [...]string{"", " "}[r.IntN(2)]
		if r.IntN(3) == 0 {
			query = fmt.Sprintf("%q %s", zipf(r)+" "+zipf(r), query)
		}
		if last := words[len(words)-1]; len(last) < leastBeginning {
			query += " "
		}
		w.index.most, w.index.wide = MaxCandidates, wideCandidates
		want := shown(w.search(query))
		w.index.most = 10
		if got := shown(w.search(query)); !slices.Equal(got, want) {
			t.Errorf("%q: as a large base\n%v\nas a small one\n%v", query, got, want)
		}
	}
}

// In a large base, too, what a viewer may not see changes neither what is found nor a score.
func TestHiddenDocumentsOfALargeBase(t *testing.T) {
	t.Parallel()
	w := large(t, 20, 30)
	texts := make([]string, 40)
	for i := range texts {
		texts[i] = fmt.Sprintf("shoes number %d of leather", i)
	}
	w.add("shelf", nil, texts...)
	w.add("zebra", nil, "shoes of a zebra")
	before := fmt.Sprint(w.search("leather shoes zebra"))
	hidden := make([]string, 200)
	for i := range hidden {
		hidden[i] = fmt.Sprintf("a canary: zebra shoes of leather %d", i)
	}
	w.add("secret", []string{"group:board"}, hidden...)
	if after := fmt.Sprint(w.search("leather shoes zebra")); after != before {
		t.Errorf("a hidden document changes\n%s\nto\n%s", before, after)
	}
	if got := w.names("canary"); strings.Contains(got, "secret") {
		t.Errorf("found %q", got)
	}
	if got := w.names("canary", "group:board"); !strings.Contains(got, "secret") {
		t.Errorf("the board finds %q", got)
	}
}
