package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/actors/durable"
	"agentsvc/actors/ingest"
	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/persistence/knowledge"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/document"
	"agentsvc/schemas/id"
	shared "agentsvc/schemas/knowledge"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// files holds the contents of documents. It is also the parser: a content is its chunks, one line
// each, and some lines are orders.
type files struct {
	mu      sync.Mutex // guards the fields below
	content map[id.FileID]string
	parses  int
	gate    chan struct{} // where set, a parse waits for it before its last chunk
	reached chan struct{} // gets a value when a parse waits
	down    bool
}

func (f *files) Open(_ context.Context, _ id.TenantID, file id.FileID) (io.ReadCloser, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	content, ok := f.content[file]
	switch {
	case f.down:
		return nil, fmt.Errorf("open a file: %w", errAway)
	case !ok:
		return nil, errors.New("no such file")
	}
	return io.NopCloser(strings.NewReader(content)), nil
}

func (f *files) Delete(_ context.Context, _ id.TenantID, file id.FileID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.content, file)
	return nil
}

// errAway: the store of files is down.
var errAway = errors.New("no connection")

func (*files) Away(err error) bool { return errors.Is(err, errAway) }

func (f *files) Parse(ctx context.Context, in document.Input, _ document.Chunking, emit func(document.Chunk) error) (info document.Info, err error) {
	r, err := in.Open(ctx)
	if err != nil {
		return info, err
	}
	all, err := io.ReadAll(r)
	if err != nil {
		return info, err
	}
	f.mu.Lock()
	f.parses++
	gate, reached := f.gate, f.reached
	f.mu.Unlock()
	lines := strings.Split(string(all), "\n")
	for i, line := range lines {
		if i == len(lines)-1 && gate != nil {
			select {
			case reached <- struct{}{}:
			default:
			}
			select {
			case <-gate:
			case <-ctx.Done():
				return info, ctx.Err()
			}
		}
		if line == "damaged" {
			return info, &document.Fault{Reason: "the file is damaged"}
		}
		if err := emit(document.Chunk{Position: i, Text: line, Tokens: 1}); err != nil {
			return info, err
		}
	}
	return document.Info{MediaType: "text/test", Chunks: len(lines)}, nil
}

type world struct {
	*testing.T
	db     *pgtest.DB
	admin  *pgxpool.Pool
	writer *journal.Writer
	files  *files
	chunks *knowledge.Chunks
	index  *knowledge.Index
	models *models
	most   int // documents that wait in memory; 0: the default
	tenant id.TenantID
	base   id.KnowledgeBaseID
}

// models is the providers of embeddings. A text's vector has its first letter's direction.
type models struct {
	mu    sync.Mutex       // guards the fields below
	fail  map[string]error // by the name of a model
	most  int              // calls that succeed all the same
	gate  chan struct{}    // where set, calls wait for it
	calls int
	asked int // texts of calls that succeeded
}

func (m *models) Embed(ctx context.Context, _ id.TenantID, of model.EmbeddingModel, texts []string) (out model.Embedded, err error) {
	m.mu.Lock()
	m.calls++
	gate := m.gate
	m.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return out, ctx.Err()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.fail[of.Name]; err != nil && m.calls > m.most {
		return out, err
	}
	for _, t := range texts {
		v := make([]float32, 26)
		v[(t[0]|0x20-'a')%26] = 1
		out.Vectors = append(out.Vectors, v)
	}
	m.asked += len(texts)
	out.TokensIn, out.CostUSD = int64(len(texts)), float64(len(texts))/4
	return out, nil
}

func (m *models) set(name string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail[name] = err
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := open(t, pgtest.New(t))
	w.begin()
	return w
}

// begin makes the tenant and its knowledge base.
func (w *world) begin() {
	w.Helper()
	w.tenant, w.base = pgtest.Tenant(w.T, w.admin), id.KnowledgeBaseID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO knowledge_bases (tenant_id, id, name) VALUES ($1, $2, 'base')`, w.tenant, w.base)
}

func open(t *testing.T, db *pgtest.DB) *world {
	t.Helper()
	w := &world{T: t, db: db, admin: db.System(t), files: &files{content: map[id.FileID]string{}}, chunks: knowledge.NewChunks(db.System(t)), models: &models{fail: map[string]error{}}}
	w.index = knowledge.NewIndex(db.API(t), w.models)
	w.writer = journaltest.Writer(t, db, journal.Config{Tables: slices.Concat(engine.Tables, ingest.Traits.Tables), Log: zerolog.Nop()})
	return w
}

// start begins a node that owns every shard: with two, two activations of one document may live.
func (w *world) start() *cluster.Node {
	w.Helper()
	n := clustertest.Node()
	ingest.Register(n, w.writer, ingest.Config{Store: w.chunks, Files: w.files, Parser: w.files, Embedder: w.models, Most: 2, Waiting: w.most, Log: zerolog.Nop()}, durable.Config{Log: zerolog.Nop()})
	return testkit.Start(w.T, n)
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	if _, err := w.admin.Exec(context.Background(), sql, args...); err != nil {
		w.Fatal(err)
	}
}

func (w *world) one(sql string, args ...any) (s string) {
	w.Helper()
	if err := w.admin.QueryRow(context.Background(), sql, args...).Scan(&s); err != nil {
		w.Fatal(err)
	}
	return s
}

// put adds a document.
func (w *world) put(content string) id.DocumentID {
	w.Helper()
	d := id.DocumentID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO kb_documents (tenant_id, id, base_id, name, media_type, size_bytes, file, sha256) VALUES ($1, $2, $3, $4, 'text/plain', $5, $6, '')`,
		w.tenant, d, w.base, d.String(), len(content), w.file(content))
	return d
}

func (w *world) file(content string) id.FileID {
	f := id.FileID{UUID: id.NewAnywhere()}
	w.files.mu.Lock()
	defer w.files.mu.Unlock()
	w.files.content[f] = content
	return f
}

// replace puts another content, as the API does.
func (w *world) replace(d id.DocumentID, content string) {
	w.Helper()
	w.exec(`UPDATE kb_documents SET content = content + 1, file = $2, size_bytes = $3, status = 'queued', error = NULL, attempts = 0, owes = true, version = version + 1 WHERE id = $1`,
		d, w.file(content), len(content))
}

func (w *world) wake(n *cluster.Node, d id.DocumentID) {
	n.Tell(cluster.Address{Kind: msg.KindIngest, Tenant: w.tenant, ID: d.UUID}, durable.Wake{})
}

// settled waits until a document owes nothing, waking it like the sweep, and returns its status,
// error, chunks shown and chunks stored.
func (w *world) settled(n *cluster.Node, d id.DocumentID) string {
	w.Helper()
	testkit.Eventually(w.T, "the document owes nothing", func() bool {
		if w.one(`SELECT owes::text FROM kb_documents WHERE id = $1`, d) == "false" {
			return true
		}
		w.wake(n, d)
		return false
	})
	return w.one(`SELECT concat_ws(' ', status, coalesce(error, '-'), chunks, (SELECT count(*) FROM kb_chunks c WHERE c.document_id = d.id)) FROM kb_documents d WHERE id = $1`, d)
}

func (w *world) found(text string) int {
	w.Helper()
	hits, err := w.index.Search(w.Context(), knowledge.Query{Tenant: w.tenant, Base: w.base, Text: text, TopK: 50, Viewer: []string{shared.Public}})
	if err != nil {
		w.Fatal(err)
	}
	return len(hits)
}

func TestADocumentIsIndexed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	var lines []string
	for i := range 450 { // more than two batches
		lines = append(lines, fmt.Sprintf("canary%d", i))
	}
	d := w.put(strings.Join(lines, "\n"))
	w.wake(n, d)
	if got := w.settled(n, d); got != "ready - 450 450" {
		t.Errorf("%s", got)
	}
	for _, word := range []string{"canary0", "canary449 "} {
		if w.found(word) == 0 {
			t.Errorf("%s is not found", word)
		}
	}
	if got := w.one(`SELECT media_type FROM kb_documents WHERE id = $1`, d); got != "text/test" {
		t.Errorf("media type %s", got)
	}
}

// What is shown stays shown until the new text is whole, and a file that cannot be read hides
// nothing.
func TestAReplacement(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	d := w.put("old text\nold end")
	w.settled(n, d)
	w.files.mu.Lock()
	w.files.gate, w.files.reached = make(chan struct{}), make(chan struct{}, 1)
	w.files.mu.Unlock()
	w.replace(d, "new text\nnew end")
	w.wake(n, d)
	<-w.files.reached
	if w.found("old") == 0 || w.found("new ") != 0 {
		t.Error("a part of the new text is found")
	}
	close(w.files.gate)
	if got := w.settled(n, d); got != "ready - 2 2" || w.found("old ") != 0 || w.found("new") == 0 {
		t.Errorf("%s", got)
	}
	w.replace(d, "zebra\ndamaged")
	if got := w.settled(n, d); got != "failed the file is damaged 2 2" || w.found("zebra ") != 0 || w.found("new") == 0 {
		t.Errorf("%s", got)
	}
}

// A content that comes while another one is read, a deletion in the middle, and other settings.
func TestChangesInTheMiddle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	hold := func() {
		w.files.mu.Lock()
		defer w.files.mu.Unlock()
		w.files.gate, w.files.reached = make(chan struct{}), make(chan struct{}, 1)
	}
	hold()
	d := w.put("first\nend")
	w.wake(n, d)
	<-w.files.reached
	w.replace(d, "second\nend")
	close(w.files.gate)
	if got := w.settled(n, d); got != "ready - 2 2" || w.found("second") != 1 || w.found("first ") != 0 {
		t.Errorf("replaced: %s", got)
	}
	hold()
	w.replace(d, "third\nend")
	w.wake(n, d)
	<-w.files.reached
	w.exec(`UPDATE kb_documents SET deleted_at = now(), owes = true, version = version + 1 WHERE id = $1`, d)
	close(w.files.gate)
	if got := w.settled(n, d); !strings.HasSuffix(got, " 0") || w.found("third ") != 0 {
		t.Errorf("deleted: %s", got)
	}
	file := w.one(`SELECT file::text FROM kb_documents WHERE id = $1`, d)
	w.files.mu.Lock()
	for f := range w.files.content {
		if f.String() == file {
			t.Error("its file stays")
		}
	}
	w.files.gate = nil
	w.files.mu.Unlock()
	e := w.put("one\ntwo")
	w.settled(n, e)
	w.exec(`UPDATE knowledge_bases SET settings = settings + 1 WHERE id = $1`, w.base)
	w.exec(`UPDATE kb_documents SET owes = true, version = version + 1 WHERE id = $1`, e)
	if got := w.settled(n, e); got != "ready - 2 2" || w.one(`SELECT read_settings::text FROM kb_documents WHERE id = $1`, e) != "2" {
		t.Errorf("other settings: %s", got)
	}
}

// Settings of the base that change while a document is read, however often, fail no document.
func TestSettingsThatChangeInTheMiddle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	w.files.mu.Lock()
	w.files.gate, w.files.reached = make(chan struct{}), make(chan struct{}, 1)
	w.files.mu.Unlock()
	d := w.put("one\ntwo")
	w.wake(n, d)
	tables := store.New(w.db.API(t), nil)
	read := func() {
		testkit.Eventually(t, "the document is read", func() bool { return len(w.files.reached) > 0 })
		<-w.files.reached
	}
	for i := range 12 {
		read()
		tokens := 200 + i
		if err := tables.Change(t.Context(), store.By{Tenant: w.tenant, Actor: "user:x"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
			_, _, err := tx.UpdateKnowledgeBase(ctx, w.base, &api.KnowledgeBasePatch{Chunking: &api.ChunkingSet{MaxTokens: &tokens}})
			return nil, err
		}); err != nil {
			t.Fatal(err)
		}
		w.wake(n, d)
	}
	read()
	close(w.files.gate)
	if got := w.settled(n, d); got != "ready - 2 2" {
		t.Errorf("%s", got)
	}
}

// A document whose source does not give its content now is indexed anew with the content that it has, and
// still says why.
func TestAContentThatItsSourceRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	d := w.put("old text\nold end")
	w.settled(n, d)
	refuse := func() {
		w.exec(`UPDATE kb_documents SET status = 'failed', error = 'no right', source_error = 'no right', version = version + 1 WHERE id = $1`, d)
	}
	anew := func() {
		w.exec(`UPDATE knowledge_bases SET settings = settings + 1 WHERE id = $1`, w.base)
		w.exec(`UPDATE kb_documents SET owes = true, version = version + 1 WHERE id = $1`, d)
	}
	refuse()
	for range 2 {
		anew()
		if got := w.settled(n, d); got != "failed no right 2 2" || w.found("old") == 0 {
			t.Errorf("%s", got)
		}
	}
	if got := w.one(`SELECT read_settings::text FROM kb_documents WHERE id = $1`, d); got != "3" {
		t.Errorf("read with the settings %s", got)
	}
	w.replace(d, "new text")
	w.exec(`UPDATE kb_documents SET source_error = NULL WHERE id = $1`, d)
	if got := w.settled(n, d); got != "ready - 1 1" {
		t.Errorf("%s", got)
	}
}

// Two nodes that both think they own the document leave it indexed once.
func TestTwoActivations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.start()
	for i := range 5 {
		a := w.start()
		d := w.put(fmt.Sprintf("doc%d\ntwice\nend", i))
		var wg sync.WaitGroup
		for _, n := range []*cluster.Node{a, b} {
			wg.Go(func() { w.wake(n, d) })
		}
		wg.Wait()
		testkit.Eventually(t, "one has overtaken the other, or has ended", func() bool {
			return w.one(`SELECT (generation > 1 OR NOT owes)::text FROM kb_documents WHERE id = $1`, d) == "true"
		})
		testkit.Stop(t, a.Stop) // else they may overtake each other until no attempt is left
		if got := w.settled(b, d); got != "ready - 3 3" {
			t.Errorf("%s", got)
		}
	}
	if got := w.found("twice"); got != 5 {
		t.Errorf("%d hits of 5", got)
	}
}

// A node that dies while it writes leaves chunks that nothing shows, and the next one begins anew.
func TestANodeThatDies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.files.gate, w.files.reached = make(chan struct{}), make(chan struct{}, 1)
	first := clustertest.Node()
	ingest.Register(first, w.writer, ingest.Config{Store: w.chunks, Files: w.files, Parser: w.files, Log: zerolog.Nop()}, durable.Config{Log: zerolog.Nop()})
	if err := first.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	d := w.put(strings.Repeat("half\n", 250) + "end")
	w.wake(first, d)
	<-w.files.reached
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := w.one(`SELECT concat_ws(' ', status, shown, (SELECT count(*) FROM kb_chunks)) FROM kb_documents WHERE id = $1`, d); got != "processing 0 200" || w.found("half") != 0 {
		t.Errorf("after the death: %s", got)
	}
	close(w.files.gate)
	if got := w.settled(w.start(), d); got != "ready - 251 251" {
		t.Errorf("%s", got)
	}
	if got := w.one(`SELECT concat_ws(' ', generation, attempts) FROM kb_documents WHERE id = $1`, d); got != "2 0" {
		t.Errorf("generation and attempts: %s", got)
	}
}

// A reading that ordinary restarts of nodes break off, however often, is no attempt: it is begun again until it ends.
func TestRestartsAreNoAttempts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.embeds("m")
	d := w.put("apple\nbanana")
	gate := make(chan struct{})
	w.models.gate = gate
	for i := range 7 { // the first attempt says from then on that there may be vectors
		n := clustertest.Node()
		ingest.Register(n, w.writer, ingest.Config{Store: w.chunks, Files: w.files, Parser: w.files, Embedder: w.models, Log: zerolog.Nop()}, durable.Config{Log: zerolog.Nop()})
		if err := n.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.wake(n, d)
		testkit.Eventually(t, "the provider is asked", func() bool {
			w.models.mu.Lock()
			defer w.models.mu.Unlock()
			return w.models.calls == i+1
		})
		if err := n.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := w.one(`SELECT concat_ws(' ', status, generation, attempts) FROM kb_documents WHERE id = $1`, d); got != fmt.Sprintf("processing %d 1", i+1) {
			t.Fatalf("after %d restarts: %s", i+1, got)
		}
	}
	close(gate)
	if got := w.settled(w.start(), d); got != "ready - 2 2" {
		t.Errorf("%s", got)
	}
}

// An attempt of which the row says something else by now is not taken back.
func TestWhatIsTakenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.put("apple")
	to := knowledge.Target{Tenant: w.tenant, Document: d, Base: w.base, Generation: 2, Content: 1}
	for _, c := range []struct {
		status     string
		generation int
		content    int
		attempts   int
		left       string
	}{
		{"processing", 2, 1, 3, "2"},
		{"processing", 2, 1, 1, "1"}, // it may have made vectors
		{"processing", 2, 1, 0, "0"}, // the API counts anew
		{"processing", 3, 1, 3, "3"},
		{"processing", 2, 2, 3, "3"},
		{"queued", 2, 1, 3, "3"},
		{"failed", 2, 1, 3, "3"},
	} {
		w.exec(`UPDATE kb_documents SET status = $2, generation = $3, content = $4, attempts = $5 WHERE id = $1`, d, c.status, c.generation, c.content, c.attempts)
		if err := w.chunks.TakeBack(t.Context(), to); err != nil {
			t.Fatal(err)
		}
		if got := w.one(`SELECT attempts::text FROM kb_documents WHERE id = $1`, d); got != c.left {
			t.Errorf("%+v: %s attempts", c, got)
		}
	}
}

// paused holds the first removal back.
type paused struct {
	*knowledge.Chunks
	once           sync.Once
	reached, ended chan struct{}
	gate           chan struct{}
}

func (p *paused) Drop(ctx context.Context, t id.TenantID, d id.DocumentID, keep, last int) (err error) {
	p.once.Do(func() {
		close(p.reached)
		<-p.gate
		err = p.Chunks.Drop(ctx, t, d, keep, last)
		close(p.ended)
	})
	return err
}

// A node that was paused before a removal removes nothing of what another node has shown since.
func TestARemovalThatIsLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	late := &paused{Chunks: w.chunks, reached: make(chan struct{}), ended: make(chan struct{}), gate: make(chan struct{})}
	first := clustertest.Node()
	ingest.Register(first, w.writer, ingest.Config{Store: late, Files: w.files, Parser: w.files, Log: zerolog.Nop()}, durable.Config{Log: zerolog.Nop()})
	testkit.Start(t, first)
	d := w.put("old")
	w.wake(first, d)
	<-late.reached
	w.replace(d, "fresh\nbetween\nfresh")
	if got := w.settled(w.start(), d); got != "ready - 3 3" {
		t.Errorf("replaced: %s", got)
	}
	close(late.gate)
	<-late.ended
	if n := w.found("fresh"); n != 2 {
		t.Errorf("%d of 2 chunks are found after the removal", n)
	}
}

// watched notes how many chunks each transaction wrote, how long it took, and the pause before it.
type watched struct {
	*knowledge.Chunks
	mu     sync.Mutex // guards the fields below
	ended  time.Time
	writes []written
}

type written struct {
	chunks      int
	pause, took time.Duration
}

func (s *watched) Write(ctx context.Context, to knowledge.Target, chunks []document.Chunk, vectors [][]float32) (bool, error) {
	began := time.Now()
	ok, err := s.Chunks.Write(ctx, to, chunks, vectors)
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes = append(s.writes, written{len(chunks), began.Sub(s.ended), now.Sub(began)})
	s.ended = now
	return ok, err
}

// A large document takes the database in small parts, and rests after each for three times as long as that took.
func TestTheWriterRests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.embeds("m")
	store := &watched{Chunks: w.chunks}
	n := clustertest.Node()
	ingest.Register(n, w.writer, ingest.Config{Store: store, Files: w.files, Parser: w.files, Embedder: w.models, Log: zerolog.Nop()}, durable.Config{Log: zerolog.Nop()})
	testkit.Start(t, n)
	d := w.put(strings.Repeat("part\n", 210) + "end")
	w.wake(n, d)
	if got := w.settled(n, d); got != "ready - 211 211" {
		t.Fatal(got)
	}
	if got := w.one(`SELECT count(*) FROM kb_chunks WHERE document_id = $1 AND vector IS NOT NULL`, d); got != "211" {
		t.Errorf("%s of 211 chunks have their vectors", got)
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	all := 0
	for i, one := range store.writes {
		all += one.chunks
		if one.chunks > 8 {
			t.Errorf("transaction %d wrote %d chunks", i, one.chunks)
		}
		if i > 0 && one.pause < min(3*store.writes[i-1].took, time.Second) {
			t.Errorf("transaction %d took %s, and the next came %s after it", i-1, store.writes[i-1].took, one.pause)
		}
	}
	if all != 211 {
		t.Errorf("%d of 211 chunks", all)
	}
}

// While the store of files is away, however long, the document waits for its timer, and is read when it comes back.
func TestStorageThatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	w.files.down = true
	d := w.put("text")
	w.wake(n, d)
	for i := range 8 {
		if i > 0 {
			n.Tell(cluster.Address{Kind: msg.KindIngest, Tenant: w.tenant, ID: d.UUID}, durable.TimerDue{Name: "again"})
		}
		testkit.Eventually(t, "the document waits", func() bool {
			return w.one(`SELECT concat_ws(' ', status, owes, generation, attempts, (SELECT count(*) FROM timers WHERE entity_id = d.id)) FROM kb_documents d WHERE id = $1`, d) ==
				fmt.Sprintf("queued f %d %d 1", i+1, min(i+1, 3))
		})
	}
	w.files.mu.Lock()
	w.files.down = false
	w.files.mu.Unlock()
	n.Tell(cluster.Address{Kind: msg.KindIngest, Tenant: w.tenant, ID: d.UUID}, durable.TimerDue{Name: "again"})
	testkit.Eventually(t, "the document is ready", func() bool {
		return w.one(`SELECT concat_ws(' ', status, owes, (SELECT count(*) FROM timers WHERE entity_id = d.id)) FROM kb_documents d WHERE id = $1`, d) == "ready f 0"
	})
}

// The sweep finds what owes something, and retention the rows of deleted documents.
func TestWorkAndRetention(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.put("text")
	all := make([]id.Shard, id.Shards)
	for i := range all {
		all[i] = id.Shard(i)
	}
	system := w.db.System(t)
	page, err := ingest.Traits.Work.Find(t.Context(), system, all, id.UUID{}, 10)
	if err != nil || len(page.Found) != 1 || page.Found[0].ID != d.UUID {
		t.Errorf("%+v, %v", page, err)
	}
	w.settled(w.start(), d)
	w.exec(`UPDATE kb_documents SET deleted_at = now() - interval '25 hours', owes = true, version = version + 1 WHERE id = $1`, d)
	w.settled(w.start(), d)
	if n, _, err := ingest.Traits.Keep[0].Pass(t.Context(), system, feed.Mark{}, 10); err != nil || n != 1 {
		t.Errorf("%d rows went: %v", n, err)
	}
}

// embeds gives the base a model ("": none), as the API does.
func (w *world) embeds(name string) {
	w.Helper()
	w.exec(`UPDATE knowledge_bases SET embedding_provider = CASE $2 WHEN '' THEN NULL ELSE 'p' END, embedding_model = nullif($2, ''), settings = settings + 1 WHERE id = $1`, w.base, name)
	w.exec(`UPDATE kb_documents SET status = 'queued', attempts = 0, owes = true, version = version + 1 WHERE base_id = $1`, w.base)
}

// embedded describes the vectors that are shown, and the usage of the tenant.
func (w *world) embedded(d id.DocumentID) string {
	w.Helper()
	return w.one(`SELECT concat_ws(' ', coalesce(embedded_by, '-'), (SELECT count(vector) FROM kb_chunks c WHERE c.document_id = d.id AND c.generation = d.shown),
		(SELECT string_agg(concat_ws(' ', kind, model, tokens_in, cost_usd, run_id, agent_id), ', ' ORDER BY at, id) FROM usage_records WHERE kind = 'embedding' AND agent_id IS NULL)) FROM kb_documents d WHERE id = $1`, d)
}

func TestVectorsAreMadeAndBilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	w.embeds("m")
	d := w.put("apple\nbanana\n" + strings.Repeat("cherry\n", 201) + "date")
	if got := w.settled(n, d); got != "ready - 204 204" {
		t.Fatal(got)
	}
	if got := w.embedded(d); got != "p/m 204 embedding m 204 51" {
		t.Errorf("%s", got)
	}
	// Another model: the old vectors are shown until the new ones are whole.
	w.files.mu.Lock()
	w.files.gate, w.files.reached = make(chan struct{}), make(chan struct{}, 1)
	w.files.mu.Unlock()
	w.embeds("m2")
	w.wake(n, d)
	<-w.files.reached
	if got := w.embedded(d); !strings.HasPrefix(got, "p/m 204 ") || w.found("apple") == 0 {
		t.Errorf("in between: %s", got)
	}
	close(w.files.gate)
	w.settled(n, d)
	if got := w.embedded(d); !strings.HasPrefix(got, "p/m2 204 ") || !strings.Contains(got, ", embedding m2 204 51") {
		t.Errorf("another model: %s", got)
	}
	w.embeds("")
	w.settled(n, d)
	if got := w.embedded(d); !strings.HasPrefix(got, "- 0 ") || w.found("apple") == 0 {
		t.Errorf("no model: %s", got)
	}
}

// A provider that refuses fails the document with its reason; one that is down does not.
func TestProvidersThatFail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	d := w.put("old")
	w.settled(n, d)
	for _, kind := range []model.Kind{model.Refused, model.Broken} {
		w.models.set("bad", &model.Error{Kind: kind, Message: "no such model"})
		w.embeds("bad")
		if got := w.settled(n, d); got != "failed no vectors could be made: no such model 1 1" || w.found("old") != 1 {
			t.Errorf("%s: %s", kind, got)
		}
		if got := w.one(`SELECT read_content::text FROM kb_documents WHERE id = $1`, d); got != "-1" {
			t.Errorf("%s: the file is the reason: %s", kind, got)
		}
	}
	w.models.set("down", &model.Error{Kind: model.Unavailable, Message: "no connection"})
	w.embeds("down")
	w.wake(n, d)
	testkit.Eventually(t, "the document waits", func() bool {
		return w.one(`SELECT concat_ws(' ', status, owes, attempts, (SELECT count(*) FROM timers WHERE entity_id = d.id)) FROM kb_documents d WHERE id = $1`, d) == "queued f 1 1"
	})
	if w.found("old") != 1 {
		t.Error("the old text is hidden meanwhile")
	}
	w.models.set("down", nil)
	n.Tell(cluster.Address{Kind: msg.KindIngest, Tenant: w.tenant, ID: d.UUID}, durable.TimerDue{Name: "again"})
	testkit.Eventually(t, "the document is ready", func() bool { return strings.HasPrefix(w.embedded(d), "p/down 1") })
}

// A provider that gives some vectors at a time, and nothing for a while in between, is asked and paid once for each text. However many
// attempts it takes, they leave no more than two generations.
func TestAProviderThatGivesSomeAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	w.embeds("m")
	const chunks = 410 // three batches
	d := w.put(strings.Repeat("apple\n", chunks-1) + "banana")
	gives := func(calls int) {
		w.models.mu.Lock()
		defer w.models.mu.Unlock()
		w.models.most, w.models.fail["m"] = w.models.calls+calls, &model.Error{Kind: model.Unavailable, Message: "no more for now"}
	}
	for attempt, calls := range []int{1, 0, 0, 0, 1, 1} {
		gives(calls)
		if attempt == 0 {
			w.wake(n, d)
		} else {
			n.Tell(cluster.Address{Kind: msg.KindIngest, Tenant: w.tenant, ID: d.UUID}, durable.TimerDue{Name: "again"})
		}
		if attempt == 5 {
			break
		}
		testkit.Eventually(t, "the document waits", func() bool {
			return w.one(`SELECT concat_ws(' ', status, owes, generation) FROM kb_documents WHERE id = $1`, d) == fmt.Sprintf("queued f %d", attempt+1)
		})
		if got := w.one(`SELECT count(*) FROM kb_chunks WHERE document_id = $1 AND generation < $2`, d, attempt); got != "0" {
			t.Errorf("attempt %d: %s chunks of generations before the last two", attempt+1, got)
		}
	}
	testkit.Eventually(t, "the document is ready", func() bool {
		return w.one(`SELECT concat_ws(' ', status, owes, chunks, (SELECT count(vector) FROM kb_chunks c WHERE c.document_id = d.id)) FROM kb_documents d WHERE id = $1`, d) == fmt.Sprintf("ready f %d %[1]d", chunks)
	})
	if got := w.one(`SELECT sum(tokens_in)::text FROM usage_records`); got != fmt.Sprint(chunks) {
		t.Errorf("%s texts were billed", got)
	}
	if n := w.found("banana "); n != 1 {
		t.Errorf("the last chunk is found %d times", n)
	}
}

// A node that stops while a document gets its vectors keeps those that it has written: each text is asked for once, however often that
// happens.
func TestAStopKeepsVectors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.embeds("m")
	const chunks = 3 // a batch each
	d := w.put(strings.TrimSuffix(strings.Repeat("apple"+strings.Repeat(" ", 1<<20)+"\n", chunks), "\n"))
	calls := make(chan struct{})
	w.models.gate = calls
	asked := func(want int) {
		testkit.Eventually(t, "the provider is asked again", func() bool {
			w.models.mu.Lock()
			defer w.models.mu.Unlock()
			return w.models.calls == want
		})
	}
	for i := range 2 { // each node makes one batch, and stops in the next one
		n := clustertest.Node()
		ingest.Register(n, w.writer, ingest.Config{Store: w.chunks, Files: w.files, Parser: w.files, Embedder: w.models, Log: zerolog.Nop()}, durable.Config{Log: zerolog.Nop()})
		if err := n.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.wake(n, d)
		asked(2*i + 1)
		calls <- struct{}{}
		asked(2*i + 2)
		if err := n.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	close(calls)
	if got := w.settled(w.start(), d); got != fmt.Sprintf("ready - %d %[1]d", chunks) {
		t.Errorf("%s", got)
	}
	w.models.mu.Lock()
	defer w.models.mu.Unlock()
	if w.models.asked != chunks {
		t.Errorf("%d texts were asked for", w.models.asked)
	}
}

// A generation of two batches whose second one fails is billed for the first. A file that cannot be read
// to its end costs no vectors.
func TestUsageOfAFailedGeneration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	w.embeds("m")
	d := w.put(strings.Repeat("apple\n", 210) + "damaged")
	if got := w.settled(n, d); got != "failed the file is damaged 0 0" {
		t.Fatal(got)
	}
	if got := w.embedded(d); got != "- 0" {
		t.Errorf("%s", got)
	}
	w.models.mu.Lock()
	w.models.most, w.models.fail["m"] = w.models.calls+1, &model.Error{Kind: model.Refused, Message: "no more"}
	w.models.mu.Unlock()
	d = w.put(strings.Repeat("apple\n", 210) + "end")
	if got := w.settled(n, d); got != "failed no vectors could be made: no more 0 0" {
		t.Fatal(got)
	}
	if got := w.embedded(d); got != "- 0 embedding m 200 50" {
		t.Errorf("%s", got)
	}
}

// Documents that wait for a slow provider hold up no others: their files have been read.
func TestASlowProviderHoldsNoPlaceForReading(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	w.embeds("m")
	gate := make(chan struct{})
	w.models.mu.Lock()
	w.models.gate = gate
	w.models.mu.Unlock()
	slow := []id.DocumentID{w.put("apple"), w.put("banana")}
	for _, d := range slow {
		w.wake(n, d)
	}
	testkit.Eventually(t, "the provider is asked for both", func() bool {
		w.models.mu.Lock()
		defer w.models.mu.Unlock()
		return w.models.calls == 2
	})
	w.exec(`UPDATE knowledge_bases SET embedding_provider = NULL, embedding_model = NULL WHERE id = $1`, w.base) // without another setting: the two go on
	plain := w.put("cherry")
	if got := w.settled(n, plain); got != "ready - 1 1" {
		t.Errorf("%s", got)
	}
	close(gate)
	for _, d := range slow {
		if got := w.settled(n, d); got != "ready - 1 1" {
			t.Errorf("%s", got)
		}
	}
}

// The documents of one tenant, however long they take, leave a place to another tenant.
func TestOneTenantLeavesAPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	w.files.mu.Lock()
	w.files.gate, w.files.reached = make(chan struct{}), make(chan struct{}, 10)
	w.files.mu.Unlock()
	var long []id.DocumentID
	for range 4 {
		d := w.put("long")
		w.wake(n, d)
		long = append(long, d)
	}
	for range 2 {
		<-w.files.reached
	}
	other := *w
	other.tenant, other.base = pgtest.Tenant(t, w.admin), id.KnowledgeBaseID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO knowledge_bases (tenant_id, id, name) VALUES ($1, $2, 'base')`, other.tenant, other.base)
	d := other.put("short")
	other.wake(n, d)
	<-w.files.reached
	w.files.mu.Lock()
	if w.files.parses != 3 {
		t.Errorf("%d documents are read at a time", w.files.parses)
	}
	w.files.mu.Unlock()
	if got := w.one(`SELECT status FROM kb_documents WHERE id = $1`, d); got != "processing" {
		t.Errorf("the other tenant's document is %s", got)
	}
	close(w.files.gate)
	other.settled(n, d)
	for _, d := range long {
		w.settled(n, d)
	}
}

// Of the documents of a tenant so many wait in memory, and the others leave it; all are indexed in the end,
// because the sweep wakes them. None is begun before it has its place.
func TestManyDocumentsWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.most = 3
	n := w.start()
	w.files.mu.Lock()
	w.files.gate, w.files.reached = make(chan struct{}), make(chan struct{}, 10)
	w.files.mu.Unlock()
	var all []id.DocumentID
	for range 10 {
		d := w.put("text")
		all = append(all, d)
		w.wake(n, d)
	}
	active := func() (k int) {
		for _, d := range all {
			if n.Active(cluster.Address{Kind: msg.KindIngest, Tenant: w.tenant, ID: d.UUID}) {
				k++
			}
		}
		return k
	}
	testkit.Eventually(t, "two are read, three wait, and the others have left memory", func() bool {
		return active() == 2+3 && w.one(`SELECT concat_ws(' ', count(*) FILTER (WHERE status = 'processing'), count(*) FILTER (WHERE attempts > 0)) FROM kb_documents`) == "2 2"
	})
	w.exec(`UPDATE kb_documents SET deleted_at = now(), owes = true, version = version + 1 WHERE id = $1`, all[9]) // it waits, or has left
	close(w.files.gate)
	for i, d := range all {
		want := "ready - 1 1"
		if i == 9 {
			want = "queued - 0 0"
		}
		if got := w.settled(n, d); got != want {
			t.Errorf("%d: %s", i, got)
		}
	}
}
