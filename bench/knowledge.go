package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"mime/multipart"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/valyala/fasthttp"
)

const (
	tenants         = 100
	samples         = 4      // documents of a tenant that are uploaded; the others are copies
	greatSamples    = 30     // of the great base
	sampleWords     = 13_000 // of each
	chunkTokens     = 120    // about 80 words
	vocabulary      = 50_000
	vectorChunks    = 20_000
	searchesOfAKind = 100
)

// zipf draws a word as often as natural texts have it; a low number is a frequent word.
func zipf(r *rand.Rand) string {
	return made(int(math.Exp(r.Float64()*math.Log(vocabulary))) - 1)
}

func made(n int) string {
	var b strings.Builder
	for n += 100; n > 0; n /= 100 {
		b.WriteString(string("bdfghklmnprstvwxzcjq"[n%20]) + string("aeiou"[n/20%5]))
	}
	return b.String()
}

// shelf is a knowledge base of a tenant.
type shelf struct {
	*bed
	id, name string
}

func (b *bed) shelf(name string, embedding any) (*shelf, error) {
	body := map[string]any{"name": name, "chunking": map[string]any{"max_tokens": chunkTokens, "overlap_tokens": 0}}
	if embedding != nil {
		body["embedding"] = embedding
	}
	s := &shelf{bed: b, name: name}
	var out struct{ ID string }
	err := b.call("POST", "/v1/knowledge-bases", body, &out)
	s.id = out.ID
	return s, err
}

// put uploads documents by name.
func (s *shelf) put(documents map[string]string) error {
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	for name, text := range documents {
		part, err := w.CreateFormFile("file", name)
		if err != nil {
			return err
		}
		if _, err := part.Write([]byte(text)); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	req.Header.SetMethod("POST")
	req.SetRequestURI(s.base + "/v1/knowledge-bases/" + s.id + "/documents")
	req.Header.Set("Authorization", "Bearer "+s.key)
	req.Header.Set("X-Tenant-Id", s.tenant)
	req.Header.SetContentType(w.FormDataContentType())
	req.SetBody(body.Bytes())
	if err := s.http.Do(req, resp); err != nil {
		return err
	}
	if resp.StatusCode() != 202 {
		return fmt.Errorf("upload: %d %s", resp.StatusCode(), resp.Body())
	}
	return nil
}

// ready waits until each document of the base is; one that failed ends the wait. It asks over one connection, ten times a second: what is
// measured beside it is not the bench's own load.
func (s *shelf) ready(ctx context.Context, limit time.Duration) error {
	c, err := pgx.Connect(ctx, s.dsn("svc"))
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		var open int
		var failed string
		if err := c.QueryRow(ctx, `SELECT count(*) FILTER (WHERE status <> 'ready'), coalesce(max(name || ': ' || error) FILTER (WHERE status = 'failed'), '')
			FROM kb_documents WHERE base_id = $1`, s.id).Scan(&open, &failed); err != nil {
			return err
		}
		switch {
		case failed != "":
			return fmt.Errorf("index %s: %s", s.name, failed)
		case open == 0:
			return nil
		}
	}
	return fmt.Errorf("the index of %s did not become ready within %s", s.name, limit)
}

// upload fills the base: all texts of all bases are these.
func (s *shelf) upload(documents int) error {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range documents {
		var b strings.Builder
		for j := range sampleWords {
			b.WriteString(zipf(r))
			b.WriteString([...]string{" ", " ", " ", " ", " ", " ", " ", " ", " ", " ", " ", ". "}[j%12])
		}
		if err := s.put(map[string]string{fmt.Sprintf("sample %d.txt", i): b.String()}); err != nil {
			return err
		}
	}
	return nil
}

// grow copies the documents of a base until it has so many chunks. No index of words is there meanwhile.
func (s *shelf) grow(ctx context.Context, c *pgx.Conn, chunks int) error {
	for _, sql := range []string{
		`DROP TABLE IF EXISTS copies`,
		fmt.Sprintf(`CREATE TEMP TABLE copies AS SELECT gen_random_uuid() AS id, d.id AS sample FROM kb_documents d,
			generate_series(1, (SELECT greatest(0, %d / sum(chunks)::int - 1) FROM kb_documents WHERE base_id = '%s')) WHERE d.base_id = '%s'`, chunks, s.id, s.id),
		`INSERT INTO kb_documents (tenant_id, id, base_id, name, media_type, size_bytes, file, sha256, owes, shown, generation, chunks, status, read_content, read_settings, embedded_by)
			SELECT d.tenant_id, c.id, d.base_id, 'copy ' || c.id, d.media_type, d.size_bytes, gen_random_uuid(), d.sha256, false, d.shown, d.generation, d.chunks, d.status, d.read_content, d.read_settings, d.embedded_by
			FROM copies c JOIN kb_documents d ON d.id = c.sample AND d.base_id = '` + s.id + `'`,
		`INSERT INTO kb_chunks (tenant_id, document_id, generation, position, base_id, id, text, heading, page, overlap, tokens, length, terms, lexemes, vector)
			SELECT k.tenant_id, c.id, k.generation, k.position, k.base_id, gen_random_uuid(), k.text, k.heading, k.page, k.overlap, k.tokens, k.length, k.terms, k.lexemes, k.vector
			FROM copies c JOIN kb_chunks k ON k.document_id = c.sample AND k.tenant_id = '` + s.tenant + `'`,
	} {
		if _, err := c.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// library is what the scenario searches: a base of each of the tenants, of which the first is measured, one with vectors of the
// same tenant, and the great one, if there is one.
type library struct {
	many         []*shelf
	meant, great *shelf
}

// keptShelf is a shelf in the file that lies beside a database that is kept.
type keptShelf struct{ ID, Name, Tenant, Key, Agent string }

func (b *bed) library() string { return filepath.Join(b.dir, "library.json") }

// save lets a later start of the scenario find the library.
func (l *library) save(file string) error {
	var list []keptShelf
	for _, s := range append(l.many, l.meant, l.great) {
		if s != nil {
			list = append(list, keptShelf{s.id, s.name, s.tenant, s.key, s.agent})
		}
	}
	j, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return os.WriteFile(file, j, 0o600)
}

// kept returns the library that was saved; nil if none was.
func (b *bed) kept() (*library, error) {
	j, err := os.ReadFile(b.library())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []keptShelf
	if err := json.Unmarshal(j, &list); err != nil {
		return nil, err
	}
	var l library
	for _, k := range list {
		o := *b
		o.tenant, o.key, o.agent = k.Tenant, k.Key, k.Agent
		s := &shelf{&o, k.ID, k.Name}
		switch k.Name {
		case "vectors":
			l.meant = s
		case "great":
			l.great = s
		default:
			l.many = append(l.many, s)
		}
	}
	return &l, nil
}

// fill makes the library: some documents by uploads, the others by copies, the index of words at last.
func (b *bed) fill(ctx context.Context) (*library, error) {
	began := time.Now()
	c, err := pgx.Connect(ctx, b.dsn("svc"))
	if err != nil {
		return nil, err
	}
	defer c.Close(ctx)
	// As in a restore: foreign keys of copies are not looked up one by one.
	if _, err := c.Exec(ctx, `DROP INDEX kb_chunks_lexemes; SET maintenance_work_mem = '2GB'; SET work_mem = '256MB'; SET session_replication_role = replica; SET enable_seqscan = off`); err != nil {
		return nil, err
	}
	var l library
	want := map[*shelf]int{}
	add := func(of *bed, name string, documents, chunks int, embedding any) (*shelf, error) {
		s, err := of.shelf(name, embedding)
		if err == nil {
			want[s] = chunks
			err = s.upload(documents)
		}
		return s, err
	}
	for i := range tenants {
		o, err := b.another(ctx, fmt.Sprint("tenant-", i))
		if err != nil {
			return nil, err
		}
		s, err := add(o, fmt.Sprint("shelf ", i), samples, b.chunks/tenants, nil)
		if err != nil {
			return nil, err
		}
		l.many = append(l.many, s)
	}
	if l.meant, err = add(l.many[0].bed, "vectors", samples, vectorChunks, map[string]any{"provider": "simulated", "model": "sim-embed"}); err != nil {
		return nil, err
	}
	if b.great > 0 {
		if l.great, err = add(b, "great", greatSamples, b.great, nil); err != nil {
			return nil, err
		}
	}
	for s := range want {
		if err := s.ready(ctx, 5*time.Minute); err != nil {
			return nil, err
		}
	}
	uploaded := time.Since(began)
	for s, chunks := range want {
		if err := s.grow(ctx, c, chunks); err != nil {
			return nil, err
		}
	}
	copied := time.Since(began)
	for _, sql := range []string{`CREATE INDEX kb_chunks_lexemes ON kb_chunks USING gin (lexemes) WITH (fastupdate = off)`,
		`VACUUM ANALYZE kb_chunks`, `VACUUM ANALYZE kb_documents`, `CHECKPOINT`} {
		if _, err := c.Exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	for _, s := range []*shelf{l.many[0], l.great} { // the newest documents of all
		if s == nil {
			continue
		}
		needles := map[string]string{}
		for i := range 20 {
			needles[fmt.Sprintf("needle %d.txt", i)] = fmt.Sprintf("%s %s needle%d %s", made(1), made(2), i, made(3))
		}
		if err := s.put(needles); err != nil {
			return nil, err
		}
		if err := s.ready(ctx, time.Minute); err != nil {
			return nil, err
		}
	}
	fmt.Printf("  uploaded in %v, copied in %v, indexed in %v\n", uploaded.Round(time.Second), (copied - uploaded).Round(time.Second), (time.Since(began) - copied).Round(time.Second))
	return &l, l.save(b.library())
}

type foundItem struct {
	DocumentName string `json:"document_name"`
}

func (s *shelf) search(query string) ([]foundItem, error) {
	var out struct{ Items []foundItem }
	err := s.call("POST", "/v1/knowledge-bases/"+s.id+"/search", map[string]any{"query": query, "top_k": 5}, &out)
	return out.Items, err
}

// queries are kinds of searches.
var queries = []struct {
	name string
	make func(r *rand.Rand) string
}{
	{"three words: frequent, less, any", func(r *rand.Rand) string {
		return made(r.IntN(200)) + " " + made(200+r.IntN(2000)) + " " + made(r.IntN(vocabulary)) + " "
	}},
	{"a question of eight words", func(r *rand.Rand) string { return eight(r) + "?" }},
	{"the same without its mark", eight}, // its last word may be unfinished
	{"one of the most frequent words", func(r *rand.Rand) string { return made(r.IntN(20)) + " " }},
	{"three of them", func(r *rand.Rand) string {
		return made(r.IntN(20)) + " " + made(20+r.IntN(20)) + " " + made(40+r.IntN(20)) + " "
	}},
	{"a word and an unfinished one", func(r *rand.Rand) string { return made(r.IntN(2000)) + " " + made(2000 + r.IntN(20000))[:4] }},
	{"a phrase of two frequent words", func(r *rand.Rand) string { return `"` + made(r.IntN(30)) + " " + made(r.IntN(30)) + `"` }},
	{"a typo", func(r *rand.Rand) string { return made(10000+r.IntN(20000)) + "x " }},
	{"frequent words and a unique one", func(r *rand.Rand) string {
		return fmt.Sprintf("%s needle%d %s ", made(r.IntN(20)), r.IntN(20), made(r.IntN(20)))
	}},
	{"a word that is nowhere", func(r *rand.Rand) string { return fmt.Sprintf("q%c ", 'a'+rune(r.IntN(26))) }}, // too short for a typo: by vectors alone, where there are any
}

func eight(r *rand.Rand) string {
	words := make([]string, 8)
	for i := range words {
		words[i] = zipf(r)
	}
	return strings.Join(words, " ")
}

// searches measures all kinds, one search at a time.
func (s *shelf) searches(title string) error {
	fmt.Printf("  %s\n", title)
	for _, kind := range queries {
		r := rand.New(rand.NewPCG(3, 4))
		took := make([]time.Duration, searchesOfAKind)
		found, first := 0, 0
		for i := range took {
			query := kind.make(r)
			began := time.Now()
			items, err := s.search(query)
			if err != nil {
				return err
			}
			took[i] = time.Since(began)
			if len(items) > 0 {
				found++
				if strings.HasPrefix(items[0].DocumentName, "needle") {
					first++
				}
			}
		}
		fmt.Printf("    %-34s p50 %7v p99 %7v; %d of %d found something, %d a unique document first\n", kind.name,
			quantile(took, .5).Round(100*time.Microsecond), quantile(took, .99).Round(100*time.Microsecond), found, len(took), first)
	}
	return nil
}

// at starts calls at a pace until stop is closed, and returns how long each took.
func at(perSecond int, stop <-chan struct{}, do func(i int) error) (took []time.Duration, err error) {
	var mu sync.Mutex
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-stop:
			wg.Wait()
			if err := failed.Load(); err != nil {
				return nil, *err
			}
			return took, nil
		case <-tick.C:
		}
		wg.Go(func() {
			began := time.Now()
			if err := do(i); err != nil {
				failed.Store(&err)
				return
			}
			mu.Lock()
			took = append(took, time.Since(began))
			mu.Unlock()
		})
	}
}

// during runs a load at a pace for a time.
func during(d time.Duration, perSecond int, do func(i int) error) ([]time.Duration, error) {
	stop := make(chan struct{})
	time.AfterFunc(d, func() { close(stop) })
	return at(perSecond, stop, do)
}

func benchKnowledge(ctx context.Context, b *bed) error {
	if err := b.run(ctx); err != nil {
		return err
	}
	l, err := b.kept()
	if err == nil && l == nil {
		if err = b.account(ctx, simulated); err == nil {
			l, err = b.fill(ctx)
		}
	}
	if err != nil {
		return err
	}
	c, err := pgx.Connect(ctx, b.dsn("svc"))
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	var n int
	var size string
	if err := c.QueryRow(ctx, `SELECT (SELECT sum(chunks) FROM kb_documents WHERE deleted_at IS NULL), pg_size_pretty(pg_total_relation_size('kb_chunks'))`).Scan(&n, &size); err != nil {
		return err
	}
	fmt.Printf("  %d chunks, %s\n", n, size)
	searched := []*shelf{l.many[0], l.meant}
	if l.great != nil {
		searched = append(searched, l.great)
	}
	if b.other != "" {
		b.stopService()
		ours := b.svcFile
		b.svcFile = b.other
		if err := b.again(ctx); err != nil {
			return err
		}
		if err := searched[0].searches(searched[0].name + ", by the other binary"); err != nil {
			return err
		}
		b.stopService()
		b.svcFile = ours
		if err := b.again(ctx); err != nil {
			return err
		}
	}
	for _, s := range searched {
		if err := s.searches(s.name); err != nil {
			return err
		}
	}
	return b.besides(ctx, l.many[0], l.many[1])
}

// again starts the service anew, on the same address and database.
func (b *bed) again(ctx context.Context) error {
	b.http.CloseIdleConnections()
	return b.launch(ctx, b.env)
}

// besides measures searches, ingestion and runs beside each other.
func (b *bed) besides(ctx context.Context, small, next *shelf) error {
	const lasts, perSecond, runsPerSecond = 20 * time.Second, 10, 100
	other := small.bed
	search := func(s *shelf) func(int) error {
		return func(i int) error {
			_, err := s.search(queries[0].make(rand.New(rand.NewPCG(9, uint64(i)))))
			return err
		}
	}
	threads, err := other.threads(250)
	if err != nil {
		return err
	}
	run := func(i int) error {
		r, err := other.post(threads[i%len(threads)], "/say ok")
		if err == nil {
			err = other.follow(r, "", func(l []byte) bool { return string(l) != "event: run.completed" })
		}
		return err
	}
	if _, err := during(5*time.Second, runsPerSecond, run); err != nil { // warm
		return err
	}
	alone, err := during(lasts, runsPerSecond, run)
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	type timed struct {
		took []time.Duration
		err  error
	}
	beside := make(chan timed, 1)
	go func() {
		took, err := at(perSecond, stop, search(small))
		beside <- timed{took, err}
	}()
	both, err := during(lasts, runsPerSecond, run)
	close(stop)
	searched := <-beside
	if err != nil || searched.err != nil {
		return fmt.Errorf("%w %w", err, searched.err)
	}
	fmt.Printf("  %d runs/s alone p50 %v p99 %v; beside %d searches/s of 10,000 chunks p50 %v p99 %v (ratio of p99 %.2f, budget 1.3); these searches p50 %v p99 %v\n", runsPerSecond, quantile(alone, .5), quantile(alone, .99),
		perSecond, quantile(both, .5), quantile(both, .99), float64(quantile(both, .99))/float64(quantile(alone, .99)), quantile(searched.took, .5), quantile(searched.took, .99))

	// 1,000 small documents, 20 in a request, while two bases are searched.
	pile, err := other.shelf(fmt.Sprint("pile of ", time.Now().UnixMilli()), nil)
	if err != nil {
		return err
	}
	stop, took := make(chan struct{}), make(chan timed, 2)
	for _, s := range []*shelf{small, next} {
		go func() {
			d, err := at(perSecond/2, stop, search(s))
			took <- timed{d, err}
		}()
	}
	r := rand.New(rand.NewPCG(7, 8))
	began := time.Now()
	for i := range 50 {
		documents := map[string]string{}
		for j := range 20 {
			words := make([]string, 200)
			for k := range words {
				words[k] = zipf(r)
			}
			documents[fmt.Sprintf("%d-%d.txt", i, j)] = strings.Join(words, " ")
		}
		if err := pile.put(documents); err != nil {
			return err
		}
	}
	accepted := time.Since(began)
	if err := pile.ready(ctx, 5*time.Minute); err != nil {
		return err
	}
	all := time.Since(began)
	close(stop)
	var beneath []time.Duration
	for range 2 {
		t := <-took
		if t.err != nil {
			return t.err
		}
		beneath = append(beneath, t.took...)
	}
	fmt.Printf("  1,000 documents of 200 words are accepted after %v and ready after %v: %.0f a minute (budget 1,000); %d searches/s beside them p50 %v p99 %v\n",
		accepted.Round(time.Millisecond), all.Round(time.Millisecond), 1000/all.Minutes(), perSecond, quantile(beneath, .5), quantile(beneath, .99))
	return nil
}
