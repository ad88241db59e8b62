package knowledge

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/document"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/model"
	"agentsvc/schemas/testkit"
)

// meanings is an Embedder that knows what some words mean: a dimension each, in an order that differs
// between models.
type meanings struct {
	mu   sync.Mutex // guards the fields below
	asks []string   // the models asked
	fail map[string]error
}

var concepts = []string{"car automobile vehicle", "dog hound puppy", "house home building"}

func (m *meanings) vector(name, text string) []float32 {
	v := make([]float32, 16)
	for i, words := range concepts {
		for _, w := range strings.Fields(words) {
			if strings.Contains(text, w) {
				v[(i+len(name))%16] = 1
			}
		}
	}
	v[15] += 0.1
	length := 0.0
	for _, f := range v {
		length += float64(f * f)
	}
	for i := range v {
		v[i] /= float32(math.Sqrt(length))
	}
	return v
}

func (m *meanings) Embed(_ context.Context, _ id.TenantID, of model.EmbeddingModel, texts []string) (out model.Embedded, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asks = append(m.asks, of.String())
	if err := m.fail[of.Provider]; err != nil {
		return out, err
	}
	for _, t := range texts {
		out.Vectors = append(out.Vectors, m.vector(of.Name, t))
	}
	out.TokensIn, out.CostUSD = 2, 0.5
	return out, nil
}

func (m *meanings) asked() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	slices.Sort(m.asks)
	all := strings.Join(m.asks, " ")
	m.asks = nil
	return all
}

// hybrid is a world whose base has the model p/m. A busy machine reaches no limit of a part of a search.
func hybrid(t *testing.T) (*world, *meanings) {
	w := newWorld(t)
	x := w.index
	for _, limit := range []*time.Duration{&x.loadTime, &x.patience, &x.embedTime, &x.pause, &x.billTime} {
		*limit = testkit.Patience
	}
	m := &meanings{fail: map[string]error{}}
	w.index.embedder = m
	w.model("p", "m")
	return w, m
}

func (w *world) model(provider, name string) {
	w.Helper()
	w.exec(`UPDATE knowledge_bases SET embedding_provider = nullif($2, ''), embedding_model = nullif($3, '') WHERE id = $1`, w.base, provider, name)
}

// learn gives the chunks of a document vectors of a model.
func (w *world) learn(d id.DocumentID, by model.EmbeddingModel) {
	w.Helper()
	rows, err := w.admin.Query(w.Context(), `SELECT generation, position, text FROM kb_chunks WHERE document_id = $1`, d)
	if err != nil {
		w.Fatal(err)
	}
	type chunk struct {
		generation, position int
		text                 string
	}
	var all []chunk
	for rows.Next() {
		var c chunk
		if err := rows.Scan(&c.generation, &c.position, &c.text); err != nil {
			w.Fatal(err)
		}
		all = append(all, c)
	}
	for _, c := range all {
		w.exec(`UPDATE kb_chunks SET vector = $4 WHERE document_id = $1 AND generation = $2 AND position = $3`, d, c.generation, c.position, packVector((&meanings{}).vector(by.Name, c.text)))
	}
	w.exec(`UPDATE kb_documents SET embedded_by = $2 WHERE id = $1`, d, by.String())
}

var pm = model.EmbeddingModel{Provider: "p", Name: "m"}

func (w *world) teach(name string, acl []string, texts ...string) id.DocumentID {
	w.Helper()
	d := w.add(name, acl, texts...)
	w.learn(d, pm)
	return d
}

func TestSearchesByMeaning(t *testing.T) {
	t.Parallel()
	w, m := hybrid(t)
	w.teach("car", nil, "Every car needs oil.")
	w.teach("dog", nil, "A dog needs meat.")
	w.add("lexical", nil, "An automobile club.") // without vectors, as before it is embedded
	if got := w.names("automobile"); !strings.HasPrefix(got, "car lexical") && !strings.HasPrefix(got, "lexical car") {
		t.Errorf("found %q", got)
	}
	hits := w.search("dog ")
	if len(hits) == 0 || hits[0].DocumentName != "dog" || hits[0].Score != 1 {
		t.Errorf("first by words and by vectors: %+v", hits)
	}
	for _, h := range w.search("puppy ") {
		if h.DocumentName == "dog" && h.Score != 0.5 {
			t.Errorf("first by vectors only: %v", h.Score)
		}
	}
	m.asked()
	if got := w.names(`"automobile club"`); got != "lexical" || m.asked() != "" {
		t.Errorf("a phrase: %q", got)
	}
	if got := w.search("?!"); len(got) != 0 || m.asked() != "" {
		t.Errorf("no words: %v", got)
	}
	w.model("", "")
	if got := w.names("puppy "); got != "" || m.asked() != "" {
		t.Errorf("without a model: %q", got)
	}
}

// Vectors are compared only with those that the viewer may see now, whatever is in memory.
func TestVectorsObeyACLs(t *testing.T) {
	t.Parallel()
	w, m := hybrid(t)
	user := id.EndUserID{UUID: id.NewAnywhere()}
	d := w.teach("secret", []string{knowledge.EndUser(user)}, "Every car needs oil.")
	if got := w.names("vehicle "); got != "" || m.asked() != "" {
		t.Errorf("a stranger finds %q; even the model tells of the document", got)
	}
	if got := w.names("vehicle ", knowledge.EndUser(user)); got != "secret" {
		t.Fatalf("the user finds %q", got)
	}
	if got := w.names("vehicle "); got != "" {
		t.Errorf("a stranger finds what is in memory: %q", got)
	}
	w.exec(`UPDATE kb_documents SET acl = '{group:staff}' WHERE id = $1`, d)
	if got := w.names("vehicle ", knowledge.EndUser(user)); got != "" {
		t.Errorf("after another ACL: %q", got)
	}
	w.exec(`UPDATE kb_documents SET acl = '{}' WHERE id = $1`, d)
	if got := w.names("vehicle "); got != "secret" {
		t.Errorf("without an ACL: %q", got)
	}
	other := *w
	other.base, other.number = w.newBase(w.tenant)
	other.model("p", "m")
	if got := other.names("vehicle "); got != "" {
		t.Errorf("another base: %q", got)
	}
	w.exec(`UPDATE kb_documents SET deleted_at = now() WHERE id = $1`, d)
	if got := w.names("vehicle "); got != "" {
		t.Errorf("deleted: %q", got)
	}
}

// A replaced document is found by its new vectors only, also where the old ones are in memory.
func TestVectorsOfAGeneration(t *testing.T) {
	t.Parallel()
	w, _ := hybrid(t)
	d := w.teach("doc", nil, "Every car needs oil.")
	if got := w.names("vehicle "); got != "doc" {
		t.Fatal(got)
	}
	w.write(d, 2, "A dog needs meat.")
	w.learn(d, pm)
	if hits := w.search("vehicle "); len(hits) != 1 || !strings.Contains(hits[0].Text, "car") {
		t.Errorf("before it is shown: %+v", hits)
	}
	w.show(d, 2, 1)
	if hits := w.search("puppy "); len(hits) != 1 || !strings.Contains(hits[0].Text, "dog") || hits[0].Score != 0.5 {
		t.Errorf("shown: %+v", hits)
	}
}

// A base without a model is searched in one transaction, and one with a model in two: the query's vectors are made
// in between.
func TestTransactionsOfASearch(t *testing.T) {
	t.Parallel()
	w, m := hybrid(t)
	taken := func(query string) int64 {
		before := w.index.pool.Stat().AcquireCount()
		w.search(query)
		return w.index.pool.Stat().AcquireCount() - before
	}
	w.add("lexical", nil, "Every car needs oil.")
	if n := taken("oil"); n != 1 {
		t.Errorf("without vectors a search takes %d connections", n)
	}
	w.teach("car", nil, "Every car needs oil.")
	if n := taken("oil"); n != 3 || m.asked() != "p/m" { // one of them bills
		t.Errorf("with vectors a search takes %d connections", n)
	}
	w.model("", "")
	if n := taken("oil"); n != 1 || m.asked() != "" {
		t.Errorf("without a model a search takes %d connections", n)
	}
}

// While a base changes its model, its documents of both models are found by meaning.
func TestTwoModels(t *testing.T) {
	t.Parallel()
	w, m := hybrid(t)
	w.teach("old", nil, "Every car needs oil.")
	w.learn(w.add("new", nil, "A vehicle needs a driver."), model.EmbeddingModel{Provider: "p", Name: "org/new"})
	w.model("p", "org/new")
	find := func(want, asked string) {
		t.Helper()
		got := strings.Fields(w.names("automobile "))
		if slices.Sort(got); strings.Join(got, " ") != want {
			t.Errorf("found %q", got)
		}
		if all := m.asked(); all != asked {
			t.Errorf("asked %s", all)
		}
	}
	find("new old", "p/m p/org/new")
	// It changes once more before all documents have the second model.
	w.learn(w.add("newest", nil, "This car is new."), model.EmbeddingModel{Provider: "p", Name: "third"})
	w.model("p", "third")
	find("new newest old", "p/m p/org/new p/third")
}

// Without its provider a search goes by words, and the provider is not asked for a while.
func TestAProviderThatIsDown(t *testing.T) {
	t.Parallel()
	for _, kind := range []model.Kind{model.Unavailable, model.Refused, model.Broken, model.Cancelled} {
		w, m := hybrid(t)
		w.teach("car", nil, "Every car needs oil.")
		m.fail["p"] = &model.Error{Kind: kind, Message: "down"}
		if got := w.names("car "); got != "car" || m.asked() != "p/m" {
			t.Errorf("%s: %q", kind, got)
		}
		w.names("car ")
		if asked := m.asked(); (asked == "") != (kind != model.Cancelled) {
			t.Errorf("%s: asked %q at once again", kind, asked)
		}
		delete(m.fail, "p")
		clear(w.index.paused.until) // time goes by
		if got := w.names("vehicle "); got != "car" {
			t.Errorf("%s: %q when it is back", kind, got)
		}
	}
}

// A tenant with many searches under way leaves connections to others: its further ones go by words.
func TestManySearchesOfATenant(t *testing.T) {
	t.Parallel()
	w, _ := hybrid(t)
	w.teach("car", nil, "Every car needs oil.")
	x := w.index
	x.patience = time.Millisecond
	for range scansEach {
		if !x.scan(t.Context(), w.tenant) {
			t.Fatal("no place")
		}
	}
	if got := w.names("vehicle "); got != "" {
		t.Errorf("found %q by vectors", got)
	}
	if got := w.names("oil "); got != "car" {
		t.Errorf("found %q by words", got)
	}
	if !x.scan(t.Context(), id.TenantID{UUID: id.NewAnywhere()}) {
		t.Error("another tenant waits")
	}
	for range scansEach {
		x.scans.Give(w.tenant)
	}
	if got := w.names("vehicle "); got != "car" {
		t.Errorf("found %q afterwards", got)
	}
}

// A hit says its places and what lets the viewer see it, if it is asked.
func TestWhyAHitWasFound(t *testing.T) {
	t.Parallel()
	w, _ := hybrid(t)
	w.teach("car", []string{"group:drivers", "group:staff"}, "Every car needs oil.")
	w.add("words", nil, "A vehicle.")
	why := func(q Query) string {
		t.Helper()
		q.Tenant, q.Base, q.TopK, q.Viewer = w.tenant, w.base, 5, []string{knowledge.Public, knowledge.Group("staff")}
		hits, err := w.index.Search(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, h := range hits {
			b, _ := json.Marshal(h.Why)
			all = append(all, h.DocumentName+" "+string(b))
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	if got, want := why(Query{Text: "vehicle ", Explain: true}), `car {"words_rank":null,"vectors_rank":1,"principal":"group:staff"}, words {"words_rank":1,"vectors_rank":null,"principal":null}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	w.model("", "")
	if got, want := why(Query{Text: "vehicle ", Explain: true}), `words {"words_rank":1,"vectors_rank":null,"principal":null}`; got != want {
		t.Errorf("by words: %s", got)
	}
	if got := why(Query{Text: "vehicle "}); got != "words null" {
		t.Errorf("not asked: %s", got)
	}
}

// A search by a run is billed with its id, one by a person without.
func TestQueriesAreBilled(t *testing.T) {
	t.Parallel()
	w, _ := hybrid(t)
	w.teach("car", nil, "Every car needs oil.")
	run, agent := id.RunID{UUID: id.NewAnywhere()}, id.AgentID{UUID: id.NewAnywhere()}
	for _, q := range []Query{{Run: &run, Agent: &agent}, {}} {
		q.Tenant, q.Base, q.Text, q.TopK, q.Viewer = w.tenant, w.base, "vehicle", 5, []string{knowledge.Public}
		if _, err := w.index.Search(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	var got string
	if err := w.admin.QueryRow(t.Context(), `SELECT string_agg(concat_ws(' ', kind, coalesce(run_id::text, '-'), coalesce(agent_id::text, '-'), model, tokens_in, tokens_out, cost_usd, detail), ', ' ORDER BY id)
		FROM usage_records WHERE tenant_id = $1`, w.tenant).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("embedding %s %s m 2 0 0.5, embedding - - m 2 0 0.5", run, agent); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestFusion(t *testing.T) {
	t.Parallel()
	at := func(positions ...int) (list []candidate) {
		for i, p := range positions {
			list = append(list, candidate{position: p, score: 1 / float64(i+1)})
		}
		return list
	}
	got := fuse(at(1, 2, 3), [][]candidate{at(3, 1), at(9)}, 10)
	want := map[int]float64{1: (1 + 61.0/62) / 2, 2: 61.0 / 62 / 2, 3: (61.0/63 + 1) / 2, 9: 0.5}
	if len(got) != len(want) || got[0].position != 1 || got[1].position != 3 || got[2].position != 9 {
		t.Errorf("%+v", got)
	}
	for _, c := range got {
		if math.Abs(c.score-want[c.position]) > 1e-12 {
			t.Errorf("%d: %v, want %v", c.position, c.score, want[c.position])
		}
	}
	if got := fuse(at(1, 2, 3), [][]candidate{at(3, 1)}, 2); len(got) != 2 {
		t.Errorf("%d of at most 2", len(got))
	}
}

// The scan finds exactly the nearest, like a sort of all.
func TestTheScanIsExact(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	random := func() []float32 {
		v := make([]float32, 19)
		for i := range v {
			v[i] = float32(r.NormFloat64())
		}
		return v
	}
	query := random()
	best := nearest{most: 25}
	var all []candidate
	for range 30 {
		d, m := visible{ID: id.DocumentID{UUID: id.NewAnywhere()}, Shown: 1}, &matrix{}
		for p := range 40 {
			v := random()
			m.add(p, packVector(v))
			score := 0.0
			for i := range v {
				score += float64(v[i]) * float64(query[i])
			}
			if score > 0 {
				all = append(all, candidate{document: d.ID, position: p, score: score})
			}
		}
		m.add(41, []byte{1, 2, 3, 4}) // of another number of dimensions: left out
		best.scan(d, m, query)
	}
	best.scan(visible{}, &matrix{width: 4, positions: []int32{1}, values: []float32{9, 9, 9, 9}}, query)
	slices.SortFunc(all, before)
	got := best.sorted()
	if len(got) != 25 {
		t.Fatalf("%d found", len(got))
	}
	for i, c := range got {
		if c.document != all[i].document || c.position != all[i].position || math.Abs(c.score-all[i].score) > 1e-4 {
			t.Errorf("place %d: %+v, want %+v", i, c, all[i])
		}
	}
}

func TestTheCacheIsBounded(t *testing.T) {
	t.Parallel()
	c := newCache(10_000)
	var keys []partAt
	for i := range 20 {
		k := partAt{part: visible{ID: id.DocumentID{UUID: id.NewAnywhere()}, Shown: i}}
		keys = append(keys, k)
		c.put(k, &matrix{values: make([]float32, 190)})
		c.get(keys[0])
	}
	if c.bytes > c.limit || len(c.at) != c.order.Len() || len(c.at) == 0 {
		t.Errorf("%d bytes, %d and %d entries", c.bytes, len(c.at), c.order.Len())
	}
	if _, ok := c.get(keys[0]); !ok {
		t.Error("what is used often has gone")
	}
	if _, ok := c.get(keys[1]); ok {
		t.Error("what was not used has stayed")
	}
	c.put(partAt{}, &matrix{values: make([]float32, 1000)})
	if _, ok := c.get(partAt{}); ok {
		t.Error("a value larger than a quarter is kept")
	}
}

// A base whose vectors do not fit in its part of the memory leaves those of others there, keeps the newest of its own, and finds
// all the same by all of them.
func TestALargeBaseLeavesMemoryToOthers(t *testing.T) {
	t.Parallel()
	w, _ := hybrid(t)
	small := w.teach("small", nil, "Every dog needs meat.")
	w.names("puppy ")
	great := *w
	great.base, great.number = w.newBase(w.tenant)
	great.model("p", "m")
	var all []id.DocumentID
	for i := range 12 {
		all = append(all, great.teach(fmt.Sprint("great ", i), nil, "Every car needs oil."))
	}
	slices.SortFunc(all, func(a, b id.DocumentID) int { return slices.Compare(a.UUID[:], b.UUID[:]) })
	x := w.index
	x.vectors.limit = 8 * x.vectors.bytes // eight documents: four of a base
	kept := func(d id.DocumentID) bool {
		_, ok := x.vectors.get(partAt{w.tenant, visible{ID: d, Shown: 1, Chunks: 1}})
		return ok
	}
	for range 5 {
		if found := strings.Count(great.names("vehicle "), "great"); found != len(all) {
			t.Errorf("found %d of %d", found, len(all))
		}
	}
	for i, d := range all {
		if kept(d) != (i >= len(all)-4) {
			t.Errorf("document %d of %d, from the oldest, is kept: %v", i, len(all), kept(d))
		}
	}
	if !kept(small) {
		t.Error("the vectors of another base have gone")
	}
}

// Where vectors are not read in time, a search finds by those in memory, and by words.
func TestVectorsThatAreNotReadInTime(t *testing.T) {
	t.Parallel()
	w, _ := hybrid(t)
	w.teach("known", nil, "Every car needs oil.")
	w.names("vehicle ")
	w.teach("new", nil, "A car has wheels.")
	w.index.loadTime = time.Millisecond
	if !w.index.loads.Try(w.tenant) { // another search reads
		t.Fatal("no place")
	}
	if got := w.names("vehicle "); got != "known" {
		t.Errorf("found %q by vectors", got)
	}
	if got := strings.Fields(w.names("wheels vehicle ")); !slices.Contains(got, "new") || !slices.Contains(got, "known") {
		t.Errorf("found %q by words and by vectors", got)
	}
	w.index.loads.Give(w.tenant)
	w.index.loadTime = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	patient, stop := w.index.loading(ctx)
	defer stop()
	end, _ := ctx.Deadline()
	if until, _ := patient.Deadline(); !until.Equal(end.Add(-textsTime)) {
		t.Errorf("vectors are read until %v, and texts until %v", until, end)
	}
	if got := strings.Fields(w.names("vehicle ")); len(got) != 2 {
		t.Errorf("found %q when there is time", got)
	}
}

// soon is a search that has time for a number of statements that read vectors.
type soon struct {
	context.Context
	statements int
}

func (s *soon) Err() error {
	if s.statements--; s.statements < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// No statement reads more vectors than it may, however many a document has. What there is no time for is left out.
func TestALargeDocumentIsReadInParts(t *testing.T) {
	t.Parallel()
	w, m := hybrid(t)
	var texts []string
	for i := range 7 {
		texts = append(texts, fmt.Sprint("Every car needs oil ", i))
	}
	d := w.teach("large", nil, texts...)
	w.index.loaded = 2
	near := func(patient context.Context) (found int) {
		q := &Query{Tenant: w.tenant, Base: w.base, Viewer: []string{knowledge.Public}}
		if err := w.index.read(t.Context(), q, func(tx pgx.Tx) error {
			if err := restrict(t.Context(), tx); err != nil {
				return err
			}
			list, err := w.index.near(t.Context(), patient, tx, q, "p/m", m.vector("m", "vehicle"), 100)
			found = len(list)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return found
	}
	for i, want := range []int{2, 4, 6, 7} {
		w.index.vectors = newCache(cacheBytes)
		if got := near(&soon{t.Context(), i + 1}); got != want {
			t.Errorf("%d statements found %d chunks, want %d", i+1, got, want)
		}
	}
	for _, first := range []int{0, 2, 4, 6} {
		if m, ok := w.index.vectors.get(partAt{w.tenant, visible{d, 1, min(2, 7-first), first}}); !ok || len(m.positions) != min(2, 7-first) {
			t.Errorf("the part from %d is not kept as it is: %+v", first, m)
		}
	}
	if got := near(&soon{t.Context(), 0}); got != 7 {
		t.Errorf("%d of 7 chunks are found in memory", got)
	}
	w.index.loaded = 3
	if got := near(&soon{t.Context(), 10}); got != 7 {
		t.Errorf("in other parts %d of 7 chunks are found", got)
	}
}

// A search reads no more texts than its query wants.
func TestTheTextsOfASearchAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 20 {
		w.add(fmt.Sprint("doc", i), nil, "oil "+strings.Repeat("x", 996))
	}
	for most, want := range map[int]int{0: 20, 1: 1, 1000: 2, 4500: 5, 50_000: 20} {
		hits, err := w.index.Search(t.Context(), Query{Tenant: w.tenant, Base: w.base, Text: "oil", TopK: 20, Viewer: []string{knowledge.Public}, MaxBytes: most})
		if err != nil || len(hits) != want {
			t.Errorf("%d bytes: %d hits, want %d: %v", most, len(hits), want, err)
		}
	}
}

// Vectors are written with their chunks.
func TestVectorsAreStored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.add("doc", nil, "one")
	w.exec(`UPDATE kb_documents SET generation = 2 WHERE id = $1`, d)
	want := []float32{0.6, -0.8}
	ok, err := w.chunks.Write(t.Context(), Target{w.tenant, d, w.base, w.number, 2, 1}, []document.Chunk{{Position: 0, Text: "two"}}, [][]float32{want})
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	var packed []byte
	if err := w.admin.QueryRow(t.Context(), `SELECT vector FROM kb_chunks WHERE document_id = $1 AND generation = 2`, d).Scan(&packed); err != nil {
		t.Fatal(err)
	}
	m := &matrix{}
	m.add(0, packed)
	if !slices.Equal(m.values, want) {
		t.Errorf("%v", m.values)
	}
}

// BenchmarkVectors searches 20,000 chunks of 512 dimensions that are in memory.
func BenchmarkVectors(b *testing.B) {
	r := rand.New(rand.NewPCG(7, 8))
	random := func() []float32 {
		v := make([]float32, 512)
		for i := range v {
			v[i] = float32(r.NormFloat64())
		}
		return v
	}
	var documents []visible
	var matrices []*matrix
	for range 1000 {
		m := &matrix{}
		for p := range 20 {
			m.add(p, packVector(random()))
		}
		documents, matrices = append(documents, visible{ID: id.DocumentID{UUID: id.NewAnywhere()}}), append(matrices, m)
	}
	query := random()
	for b.Loop() {
		best := nearest{most: ranked}
		for i, m := range matrices {
			best.scan(documents[i], m, query)
		}
		best.sorted()
	}
}
