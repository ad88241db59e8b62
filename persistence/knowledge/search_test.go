package knowledge

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/document"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lexis"
)

func TestQueriesNameTheirTenant(t *testing.T) {
	pgtest.Tenants(t, queries, nil)
}

func TestQueriesArePrepared(t *testing.T) {
	pgtest.Prepare(t, queries)
}

// world is a tenant with a base in a database of its own.
type world struct {
	*testing.T
	admin  *pgxpool.Pool
	chunks *Chunks
	index  *Index
	tenant id.TenantID
	base   id.KnowledgeBaseID
	number int64
}

func newWorld(t *testing.T) *world {
	t.Helper()
	db := pgtest.New(t)
	w := &world{T: t, admin: db.System(t), chunks: NewChunks(db.System(t)), index: NewIndex(db.API(t), nil)}
	w.tenant = pgtest.Tenant(t, w.admin)
	w.base, w.number = w.newBase(w.tenant)
	return w
}

func (w *world) newBase(t id.TenantID) (b id.KnowledgeBaseID, number int64) {
	w.Helper()
	b = id.KnowledgeBaseID{UUID: id.NewAnywhere()}
	if err := w.admin.QueryRow(w.Context(), `INSERT INTO knowledge_bases (tenant_id, id, name) VALUES ($1, $2, 'base') RETURNING number`, t, b).Scan(&number); err != nil {
		w.Fatal(err)
	}
	return b, number
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	if _, err := w.admin.Exec(w.Context(), sql, args...); err != nil {
		w.Fatal(err)
	}
}

// add makes a document with these chunks, which is shown.
func (w *world) add(name string, acl []string, texts ...string) id.DocumentID {
	w.Helper()
	d := id.DocumentID{UUID: id.NewAnywhere()}
	if acl == nil {
		acl = []string{}
	}
	w.exec(`INSERT INTO kb_documents (tenant_id, id, base_id, name, media_type, size_bytes, file, sha256, acl, owes) VALUES ($1, $2, $3, $4, 'text/plain', 1, $5, '', $6, false)`,
		w.tenant, d, w.base, name, id.NewAnywhere(), acl)
	w.write(d, 1, texts...)
	w.show(d, 1, len(texts))
	return d
}

// write adds a generation, which is not shown.
func (w *world) write(d id.DocumentID, generation int, texts ...string) {
	w.Helper()
	w.exec(`UPDATE kb_documents SET generation = $2 WHERE id = $1`, d, generation)
	chunks := make([]document.Chunk, len(texts))
	for i, text := range texts {
		chunks[i] = document.Chunk{Position: i, Text: text, Tokens: 1}
	}
	ok, err := w.chunks.Write(w.Context(), Target{w.tenant, d, w.base, w.number, generation, 1}, chunks, nil)
	if err != nil || !ok {
		w.Fatal(ok, err)
	}
}

func (w *world) show(d id.DocumentID, generation, chunks int) {
	w.Helper()
	w.exec(`UPDATE kb_documents SET shown = $2, chunks = $3, status = 'ready' WHERE id = $1`, d, generation, chunks)
}

func (w *world) search(text string, viewer ...string) []knowledge.Hit {
	w.Helper()
	hits, err := w.index.Search(w.Context(), Query{Tenant: w.tenant, Base: w.base, Text: text, TopK: 50, Viewer: append([]string{knowledge.Public}, viewer...)})
	if err != nil {
		w.Fatalf("search %q: %v", text, err)
	}
	return hits
}

// names are the documents of hits, best first.
func (w *world) names(text string, viewer ...string) string {
	w.Helper()
	var list []string
	for _, h := range w.search(text, viewer...) {
		list = append(list, h.DocumentName)
	}
	return strings.Join(list, " ")
}

// Each row is a sentence of open-parts.md, "Knowledge", or of the issue. The viewer may see few chunks, or
// they are found by the index of words.
func TestWhatASearchFinds(t *testing.T) {
	t.Parallel()
	for name, few := range map[string]int64{"few chunks": fewChunks, "by the index": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.index.few = few
			testWhatASearchFinds(w)
		})
	}
}

func testWhatASearchFinds(t *world) {
	w := t
	w.add("refunds", nil, "Refunds take three days. Order ORD-1042 was refunded.")
	w.add("delivery", nil, "Express delivery costs five euros, and delivery by express takes a day.")
	w.add("chinese", nil, "订单的退款需要三天才能到账")
	w.add("thai", nil, "การคืนเงินใช้เวลาสามวัน")
	w.add("german", nil, "Die Rückgabe der Bestellungen ist in jeder Filiale möglich.")
	w.add("code", nil, "Call createThread with the field order_id.")
	marks := "ก" + strings.Repeat("ั", 700) // no lexeme of Postgres is so long
	w.add("marks", nil, "ก่อน "+marks+" หลัง")
	for _, c := range []struct{ query, want string }{
		{"refund", "refunds"},
		{"REFUNDS", "refunds"},
		{"ord-1042", "refunds"},
		{"1042", "refunds"},
		{`"express delivery"`, "delivery"},
		{`"delivery express"`, ""},
		{"expr", "delivery"},        // the unfinished last word
		{"expr ", ""},               // a finished one
		{"delviery", "delivery"},    // a typo
		{"deliverry", "delivery"},   // another one
		{"delviery be", "delivery"}, // a typo before a stop word, with which others begin
		{"zebra be", ""},
		{"退款", "chinese"},
		{"คืนเงิน", "thai"},
		{"ru\u0308ckgabe", "german"},
		{"Bestellung", "german"},
		{"ｏｒｄｅｒ＿ｉｄ", "code refunds"},
		{"thread", "code"},
		{"zebra", ""},
		{`' | ! & ( ) : * <-> \`, ""},
		{`'); DROP TABLE kb_chunks; --`, ""},
		{strings.Repeat(`"`, 2000), ""},
		{strings.Repeat(`x"y`, 600), ""},
		{marks, "marks"},
		{"ข" + strings.Repeat("ั", 700), ""},
		{strings.Repeat("가\u0345", 1000), ""},
	} {
		if got := w.names(c.query); got != c.want {
			t.Errorf("%.40q: %q, want %q", c.query, got, c.want)
		}
	}
	if hits := w.search("refund order"); hits[0].DocumentName != "refunds" || hits[0].Score <= 0 || hits[0].Score > 1 || hits[0].Cite != knowledge.Cite(hits[0].DocumentID, 0) {
		t.Errorf("%+v", hits)
	}
	if hits, err := w.index.Search(t.Context(), Query{Tenant: w.tenant, Base: w.base, Text: "refund", TopK: 0, Viewer: []string{knowledge.Public}}); err != nil || len(hits) != 0 {
		t.Errorf("%v, %v", hits, err)
	}
}

// A document is seen if its ACL is empty, or holds public, the end user or one of its groups, and a
// change holds for the next search.
func TestACLs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	u, other := id.EndUserID{UUID: id.NewAnywhere()}, id.EndUserID{UUID: id.NewAnywhere()}
	w.add("all", nil, "canary of all")
	w.add("public", []string{knowledge.Public}, "canary of the public")
	mine := w.add("mine", []string{knowledge.EndUser(u)}, "canary of one")
	w.add("staff", []string{knowledge.Group("staff")}, "canary of staff")
	sorted := func(viewer ...string) string {
		names := strings.Fields(w.names("canary", viewer...))
		slices.Sort(names)
		return strings.Join(names, " ")
	}
	for _, c := range []struct {
		viewer []string
		want   string
	}{
		{nil, "all public"},
		{knowledge.Viewer(&u, nil), "all mine public"},
		{knowledge.Viewer(&other, []string{"staff"}), "all public staff"},
		{knowledge.Viewer(&other, []string{"STAFF", "public", u.String()}), "all public"},
	} {
		if got := sorted(c.viewer...); got != c.want {
			t.Errorf("%v: %q, want %q", c.viewer, got, c.want)
		}
	}
	// Hidden documents change no score.
	before := w.search("canary staff")
	w.add("hidden", []string{knowledge.Group("board")}, "staff staff staff", "canary canary staff")
	after := w.search("canary staff")
	for i := range after {
		if after[i].Score != before[i].Score {
			t.Errorf("a hidden document moved the score of %s from %v to %v", after[i].DocumentName, before[i].Score, after[i].Score)
		}
	}
	w.exec(`UPDATE kb_documents SET acl = $2 WHERE id = $1`, mine, []string{knowledge.EndUser(other)})
	if got := sorted(knowledge.Viewer(&u, nil)...); got != "all public" {
		t.Errorf("after the change: %q", got)
	}
	w.exec(`UPDATE kb_documents SET deleted_at = now() WHERE id = $1`, mine)
	if got := sorted(knowledge.Viewer(&other, nil)...); got != "all public" {
		t.Errorf("after the deletion: %q", got)
	}
}

// A person of many groups sees what one of few sees, and the ACL has one of the groups or not.
func TestPeopleOfManyGroups(t *testing.T) {
	t.Parallel()
	w, _ := hybrid(t)
	u := id.EndUserID{UUID: id.NewAnywhere()}
	groups := make([]string, 4000)
	for i := range groups {
		groups[i] = fmt.Sprint("group ", i)
	}
	acl := make([]string, 200)
	for i := range acl {
		acl[i] = knowledge.Group(fmt.Sprint("other ", i))
	}
	w.teach("all", nil, "a canary, and a car")
	w.teach("public", []string{knowledge.Public}, "a canary, and a car")
	w.teach("mine", append(acl[:100:100], knowledge.EndUser(u)), "a canary, and a car")
	w.teach("last", append(acl[:199:199], knowledge.Group("group 3999")), "a canary, and a car")
	w.teach("others", acl, "a canary, and a car")
	w.teach("nearly", []string{"group:GROUP 1", "group:group", "end_user:" + u.String() + "0"}, "a canary, and a car")
	sorted := func(text string, groups []string) string {
		names := strings.Fields(w.names(text, knowledge.Viewer(&u, groups)...))
		slices.Sort(names)
		return strings.Join(names, " ")
	}
	for _, few := range []int64{fewChunks, -1} {
		w.index.few = few
		for _, text := range []string{"canary ", "vehicle ", "canray "} { // by words, by vectors, by what was meant
			if got := sorted(text, groups); got != "all last mine public" {
				t.Errorf("%s: 4,000 groups see %q", text, got)
			}
			if got := sorted(text, groups[:manyPrincipals]); got != "all mine public" {
				t.Errorf("%s: %d groups see %q", text, manyPrincipals, got)
			}
			if got := sorted(text, groups[:3]); got != "all mine public" {
				t.Errorf("%s: 3 groups see %q", text, got)
			}
		}
	}
	hits, err := w.index.Search(t.Context(), Query{Tenant: w.tenant, Base: w.base, Text: "canary", TopK: 10, Viewer: knowledge.Viewer(&u, groups), Explain: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hits {
		if h.DocumentName == "last" && (h.Why == nil || h.Why.Principal == nil || *h.Why.Principal != "group:group 3999") {
			t.Errorf("%+v", h.Why)
		}
	}
}

// What a viewer of few chunks finds, with which scores, is what the index of words finds; and the chunks that
// the viewer may not see, however many, are not looked at.
func TestFewChunksAreRankedAsByTheIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := rand.New(rand.NewPCG(7, 8))
	text := func() string {
		var words []string
		for range 5 + r.IntN(20) {
			words = append(words, zipf(r))
		}
		return strings.Join(words, " ")
	}
	for i := range 12 {
		w.add(fmt.Sprint("mine ", i), []string{"group:mine"}, text(), text(), text())
		w.add(fmt.Sprint("theirs ", i), []string{"group:theirs"}, text(), text(), text(), text(), text(), text(), text(), text(), text(), text(), text(), text(), text())
	}
	shown := func(query string) (list []string) {
		for _, h := range w.search(query, "group:mine") {
			list = append(list, fmt.Sprintf("%s/%d %.9f %s", h.DocumentName, h.Position, h.Score, h.Text))
		}
		return list
	}
	found := 0
	for range 60 {
		var words []string
		for range 1 + r.IntN(4) {
			words = append(words, zipf(r))
		}
		query := strings.Join(words, " ") + [...]string{"", " "}[r.IntN(2)]
		if r.IntN(4) == 0 {
			query = `"` + query + `"`
		}
		w.index.few = -1
		want := shown(query)
		w.index.few = fewChunks
		if got := shown(query); !slices.Equal(got, want) {
			t.Errorf("%q: few\n%v\nby the index\n%v", query, got, want)
		}
		found += len(want)
	}
	if found == 0 {
		t.Error("nothing was found: the test is void")
	}
	for _, c := range []struct {
		chunks, every int64
		want          bool
	}{{0, 0, true}, {fewChunks, fewChunks, true}, {fewChunks + 1, 8 * fewChunks, false}, {fewChunks + 1, 9 * (fewChunks + 1), true}, {MaxCandidates, 1e9, true}, {MaxCandidates + 1, 1e9, false}} {
		if got := w.index.isFew(c.chunks, c.every); got != c.want {
			t.Errorf("%d of %d chunks are few: %v", c.chunks, c.every, got)
		}
	}
}

// How many chunks of a base a viewer may see, and of how many, is counted once in a while from 2,000 on.
func TestTheNumberOfChunksIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	board := knowledge.Group("board")
	w.add("all", nil, "canary")
	w.add("secret", []string{board}, "canary")
	count := func(viewer ...string) (chunks, every int64) {
		t.Helper()
		q := Query{Tenant: w.tenant, Base: w.base, Viewer: append([]string{knowledge.Public}, viewer...)}
		if err := w.index.read(t.Context(), &q, func(tx pgx.Tx) (err error) {
			chunks, every, err = w.index.seen.count(t.Context(), tx, &q)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return chunks, every
	}
	set := func(name string, chunks int) {
		w.exec(`UPDATE kb_documents SET chunks = $2 WHERE name = $1`, name, chunks)
	}
	for _, c := range []struct{ all, secret, chunks, every, board int64 }{
		{1, 1, 1, 2, 2}, {999, 1000, 999, 1999, 1999}, // few are counted each time
		{1000, 1000, 1000, 2000, 2000}, {5, 5, 1000, 2000, 2000}, // the numbers before
	} {
		set("all", int(c.all))
		set("secret", int(c.secret))
		if chunks, every := count(); chunks != c.chunks || every != c.every {
			t.Errorf("a stranger sees %d of %d chunks, want %d of %d", chunks, every, c.chunks, c.every)
		}
		if chunks, every := count(board); chunks != c.board || every != c.every {
			t.Errorf("the board sees %d of %d chunks, want %d of %d", chunks, every, c.board, c.every)
		}
	}
	for k, v := range w.index.seen.at { // time goes by
		v.until = time.Now()
		w.index.seen.at[k] = v
	}
	if chunks, every := count(); chunks != 5 || every != 10 {
		t.Errorf("later a stranger sees %d of %d chunks", chunks, every)
	}
}

// A query of words that are nowhere reads a bounded part of the base, and looks for a few of them.
func TestWordsThatAreNowhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var texts []string
	for i := range 30 {
		texts = append(texts, strings.Repeat(fmt.Sprintf("zebra%d ", i), 10_000))
	}
	w.add("long", nil, texts...)
	w.add("short", nil, "a zebra and an elephant")
	for _, few := range []int64{fewChunks, -1} {
		w.index.few = few
		if got := w.names("elephnat "); got != "short" {
			t.Errorf("found %q", got)
		}
		if hits := w.search(strings.Repeat("zebrx zebry zebrz ", 30)); len(hits) > 50 {
			t.Errorf("%d hits", len(hits))
		}
		// The ninth word that is nowhere is not looked for.
		if got := w.names("elephantqq1 elephantqq2 elephantqq3 elephantqq4 elephantqq5 elephantqq6 elephantqq7 elephantqq8 elephnat "); got != "" {
			t.Errorf("found %q", got)
		}
	}
}

// No search reaches another tenant or another base.
func TestForeignBases(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add("a", nil, "canary")
	other := *w
	other.tenant = pgtest.Tenant(t, w.admin)
	if hits := other.search("canary"); len(hits) != 0 {
		t.Errorf("another tenant found %v", hits)
	}
	other.tenant = w.tenant
	other.base, other.number = w.newBase(w.tenant)
	if hits := other.search("canary"); len(hits) != 0 {
		t.Errorf("another base found %v", hits)
	}
	w.exec(`UPDATE knowledge_bases SET deleted_at = now() WHERE id = $1`, w.base)
	if hits := w.search("canary"); len(hits) != 0 {
		t.Errorf("a deleted base found %v", hits)
	}
}

// While a document is replaced, each search sees the old text or the new one, and all of it.
func TestAReplacementIsAtomic(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.add("doc", nil, "canary one", "between", "canary one")
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				hits, err := w.index.Search(t.Context(), Query{Tenant: w.tenant, Base: w.base, Text: "canary", TopK: 10, Viewer: []string{knowledge.Public}})
				if err != nil || len(hits) != 2 || hits[0].Text != hits[1].Text {
					t.Errorf("%v, %v", hits, err)
					return
				}
			}
		})
	}
	for g := 2; g < 12; g++ {
		text := fmt.Sprintf("canary %d", g)
		w.write(d, g, text, "between", text)
		w.show(d, g, 3)
		if err := w.chunks.Drop(t.Context(), w.tenant, d, g, g); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	wg.Wait()
}

// A removal that comes late deletes nothing of a generation that was begun since, and one after a reading that
// failed deletes what that left.
func TestARemovalIsFenced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.add("doc", nil, "canary")
	drop := func(keep, last int) {
		t.Helper()
		if err := w.chunks.Drop(t.Context(), w.tenant, d, keep, last); err != nil {
			t.Fatal(err)
		}
	}
	w.write(d, 2, "canary", "between", "canary")
	drop(1, 1) // while it is written
	w.show(d, 2, 3)
	drop(1, 1) // and shown
	if n := len(w.search("canary")); n != 2 {
		t.Errorf("%d of 2 chunks are found", n)
	}
	w.write(d, 3, "broken")
	drop(2, 3)
	var left int
	if err := w.admin.QueryRow(t.Context(), `SELECT count(*) FROM kb_chunks WHERE document_id = $1`, d).Scan(&left); err != nil || left != 3 {
		t.Errorf("%d chunks in all, %v", left, err)
	}
}

// A removal waits for a transaction that has begun to write chunks, as one of a node that was paused: nothing of it is left.
func TestARemovalWaitsForWriters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.add("doc", nil, "canary")
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(holdSQL, w.tenant, d, 1, 1)
	w.exec(`UPDATE kb_documents SET deleted_at = now() WHERE id = $1`, d)
	dropped := make(chan error, 1)
	go func() { dropped <- w.chunks.Drop(t.Context(), w.tenant, d, -1, 1) }()
	pgtest.Blocked(t, w.admin)
	exec(`INSERT INTO kb_chunks (tenant_id, document_id, generation, position, base_id, id, text, overlap, heading, page, tokens, length, terms, lexemes)
		SELECT tenant_id, document_id, generation, 1, base_id, gen_random_uuid(), text, overlap, heading, page, tokens, length, terms, lexemes FROM kb_chunks WHERE document_id = $1`, d)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-dropped; err != nil {
		t.Fatal(err)
	}
	var left int
	if err := w.admin.QueryRow(t.Context(), `SELECT count(*) FROM kb_chunks WHERE document_id = $1`, d).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d chunks are left, %v", left, err)
	}
}

// A writer that is no longer the document's last one writes nothing.
func TestAWriteIsFenced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.add("doc", nil, "canary")
	chunk := []document.Chunk{{Position: 7, Text: "late"}}
	for what, to := range map[string]Target{
		"an older generation": {w.tenant, d, w.base, w.number, 0, 1},
		"a later generation":  {w.tenant, d, w.base, w.number, 2, 1},
		"another content":     {w.tenant, d, w.base, w.number, 1, 2},
		"no document":         {w.tenant, id.DocumentID{UUID: id.NewAnywhere()}, w.base, w.number, 1, 1},
	} {
		if ok, err := w.chunks.Write(t.Context(), to, chunk, nil); ok || err != nil {
			t.Errorf("%s: %v, %v", what, ok, err)
		}
	}
	w.exec(`UPDATE kb_documents SET deleted_at = now() WHERE id = $1`, d)
	if ok, err := w.chunks.Write(t.Context(), Target{w.tenant, d, w.base, w.number, 1, 1}, chunk, nil); ok || err != nil {
		t.Errorf("a deleted document: %v, %v", ok, err)
	}
}

// Neighbours are one hit, and what one repeats of the other is there once.
func TestNeighboursAreMerged(t *testing.T) {
	t.Parallel()
	hit := func(position int, text string, overlap int) piece {
		return piece{knowledge.Hit{Position: position, Text: text}, position, position, overlap}
	}
	got := merge([]piece{hit(4, "four", 0), hit(5, "four five", 4), hit(9, "nine", 0), hit(3, "three", 0), hit(2, "two", 0), hit(6, "six", 0)}, 4)
	var texts []string
	for _, h := range got {
		texts = append(texts, h.Text)
	}
	if want := []string{"three\nfour\nfive", "nine", "two", "six"}; !slices.Equal(texts, want) || got[0].Position != 4 {
		t.Errorf("%q at %d, want %q", texts, got[0].Position, want)
	}
	if got := merge([]piece{hit(1, "a", 0), hit(5, "b", 0)}, 1); len(got) != 1 {
		t.Errorf("%d hits of at most 1", len(got))
	}
}

// The scores are those of BM25 as the books have it.
func TestScoresAreThoseOfBM25(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	texts := []string{"apple", "apple apple pear", "pear plum cherry cherry", "apple plum plum plum fig fig fig fig", "fig", "grape grape"}
	for i, text := range texts {
		w.add(fmt.Sprint(i), nil, text)
	}
	const query = "apple plum"
	hits := w.search(query)
	naive := map[string]float64{}
	var matching []string
	length := 0.0
	for _, text := range texts {
		if strings.Contains(text, "apple") || strings.Contains(text, "plum") {
			matching = append(matching, text)
			length += float64(len(strings.Fields(text)))
		}
	}
	mean, most := length/float64(len(matching)), 0.0
	for _, word := range strings.Fields(query) {
		in := 0.0
		for _, text := range texts {
			if strings.Contains(text, word) {
				in++
			}
		}
		idf := math.Log(1 + (float64(len(texts))-in+0.5)/(in+0.5))
		most += idf * 2.2
		for i, text := range texts {
			tf := float64(strings.Count(text, word))
			naive[fmt.Sprint(i)] += idf * tf * 2.2 / (tf + 1.2*(0.25+0.75*float64(len(strings.Fields(text)))/mean))
		}
	}
	if len(hits) != len(matching) {
		t.Fatalf("%d hits, want %d", len(hits), len(matching))
	}
	for i, h := range hits {
		if want := naive[h.DocumentName] / most; math.Abs(h.Score-want) > 1e-9 {
			t.Errorf("%s: %v, want %v", h.DocumentName, h.Score, want)
		}
		if i > 0 && hits[i-1].Score < h.Score {
			t.Error("the order is not that of the scores")
		}
	}
}

func TestPackedTerms(t *testing.T) {
	t.Parallel()
	terms, _ := lexis.Index(strings.Repeat("order ", 300) + "refund")
	b := pack(terms)
	for word, want := range map[string]int{"order": 255, "refund": 1, "parcel": 0} {
		if got := occurs(b, lexis.Hash(word)); got != want {
			t.Errorf("%s: %d, want %d", word, got, want)
		}
	}
}

func TestAlike(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"order", "order", true}, {"oredr", "order", true}, {"orde", "order", true}, {"orders", "order", true}, {"orbit", "order", false},
		{"xrder", "order", false}, {"delivrey", "delivery", true}, {"dlivery", "delivery", false}, {"cat", "car", false}, {"deliveryy", "delivery", true},
	} {
		if got := alike(c.a, c.b); got != c.want {
			t.Errorf("%s, %s: %v", c.a, c.b, got)
		}
	}
}

// The longest chunk that a tsvector can hold is cut, not refused.
func TestALongChunk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var b strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&b, "word%d ", i)
	}
	w.add("long", nil, b.String()+strings.Repeat("again ", 20_000))
	if got := w.names("word17"); got != "long" {
		t.Errorf("%q", got)
	}
}
