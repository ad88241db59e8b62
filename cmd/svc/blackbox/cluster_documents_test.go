//go:build storm

package blackbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// shelf is a knowledge base whose documents are put, replaced, deleted and searched while nodes die.
type shelf struct {
	c        *caller
	base     string
	searches atomic.Int64
}

// pages returns the text of a version of a document, which makes several chunks. Every line names document and version.
func pages(name string, version int, word string) []byte {
	var b strings.Builder
	for i := range 40 {
		fmt.Fprintf(&b, "# Part %d of %s\n\nThe document %s says %s in its part %d, which is version v%d of it.\n\n", i, name, name, word, i, version)
	}
	return []byte(b.String())
}

type found struct {
	DocumentID string `json:"document_id"`
	Text       string
}

// find searches for all parts of a document. ok is false if no node answered.
func (s *shelf) find(ctx context.Context, words string) (hits []found, ok bool) {
	body, _ := json.Marshal(object{"query": words, "top_k": 50})
	a, err := s.c.do(ctx, "POST", "/v1/knowledge-bases/"+s.base+"/search", body)
	if err != nil || a.status != http.StatusOK {
		return nil, false
	}
	var list struct{ Items []found }
	if json.Unmarshal(a.body, &list) != nil {
		return nil, false
	}
	s.searches.Add(1)
	return list.Items, true
}

// volume is one document and what its owner knows of it.
type volume struct {
	name      string
	canary    bool   // its ACL forbids it to everybody who searches here
	id        string // of the last acknowledged upload; empty: it is deleted
	version   int    // the last that was sent
	known     int    // the last that was acknowledged
	maybeGone bool   // a deletion has an unknown outcome
	maybeBack bool   // an upload after a deletion has an unknown outcome
}

// put sends another version.
func (s *shelf) put(ctx context.Context, v *volume) {
	v.version++
	word := "plain"
	if v.canary {
		word = "secretcanary"
	}
	a, err := putDocuments(ctx, s.c, s.base, map[string][]byte{v.name + ".md": pages(v.name, v.version, word)})
	var list struct{ Items []struct{ ID string } }
	switch {
	case err != nil || a.status != http.StatusAccepted || json.Unmarshal(a.body, &list) != nil || len(list.Items) != 1:
		v.maybeBack = v.maybeBack || v.id == "" || v.maybeGone
	default:
		v.id, v.known, v.maybeGone, v.maybeBack = list.Items[0].ID, v.version, false, false
	}
}

// look checks what a search finds of a document: one version of it, or nothing.
func (s *shelf) look(t *testing.T, ctx context.Context, v *volume) {
	gone := v.id == "" && !v.maybeBack
	hits, ok := s.find(ctx, v.name)
	if !ok {
		return
	}
	versions := map[string]bool{}
	for _, h := range hits {
		if !strings.Contains(h.Text, "document "+v.name+" ") {
			continue
		}
		if gone {
			t.Errorf("%s was deleted, and a search finds it", v.name)
			return
		}
		for _, part := range strings.Split(h.Text, "which is version ")[1:] {
			versions[strings.Fields(part)[0]] = true
		}
	}
	if len(versions) > 1 {
		t.Errorf("one search finds %d versions of %s: %v", len(versions), v.name, versions)
	}
	if v.canary && len(versions) > 0 {
		t.Errorf("a search finds %s, which its ACL forbids", v.name)
	}
}

// live is the story of one document, until stop is closed.
func (s *shelf) live(t *testing.T, ctx context.Context, v *volume, stop <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		switch {
		case !v.canary && i%5 == 4 && v.id != "":
			a, err := s.c.do(ctx, "DELETE", "/v1/knowledge-bases/"+s.base+"/documents/"+v.id, nil)
			switch {
			case err == nil && (a.status == http.StatusNoContent || a.status == http.StatusNotFound && v.maybeGone):
				v.id, v.maybeGone = "", false
			default:
				v.maybeGone = true
			}
		default:
			s.put(ctx, v)
		}
		for range 3 {
			s.look(t, ctx, v)
			pauseFor(ctx, rand.N(150*time.Millisecond))
		}
	}
}

// watchShown notes each generation that is shown, and how many attempts it took, in the transaction that shows it.
const watchShown = `CREATE TABLE shown (document uuid NOT NULL, attempts int NOT NULL);
CREATE FUNCTION note_shown() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO public.shown VALUES (NEW.id, OLD.attempts); RETURN NULL; END $$;
CREATE TRIGGER shown AFTER UPDATE OF shown ON kb_documents FOR EACH ROW WHEN (NEW.shown > OLD.shown) EXECUTE FUNCTION note_shown()`

// misbilled counts the transactions whose generations and bills do not match. A generation is billed once, in the
// transaction that shows it. One that another attempt had begun may have all its vectors from there, and costs nothing then.
const misbilled = `WITH s AS (SELECT xmin::text AS tx, count(*) AS generations, count(*) FILTER (WHERE attempts <= 1) AS first FROM shown GROUP BY 1),
u AS (SELECT xmin::text AS tx, count(*) AS bills FROM usage_records WHERE kind = 'embedding' AND tokens_in > 100 GROUP BY 1)
SELECT count(*)::text FROM s FULL JOIN u USING (tx) WHERE coalesce(bills, 0) > coalesce(generations, 0) OR coalesce(bills, 0) < coalesce(first, 0)`

// TestClusterDocuments kills nodes at random while documents are put, replaced, deleted and searched through all of them,
// beside runs. A search sees one version of a document, or none, never what was deleted or is forbidden; at the end each document is
// ready once, with the chunks of its last version and no others, each with its vector. Each generation that was shown
// has been billed once.
func TestClusterDocuments(t *testing.T) {
	b := newBed(t, 3, time.Second)
	b.start()
	ctx := within(t, 4*time.Minute)
	c := b.client(b.desk.tenant("library"), b.book)
	var base struct{ ID string }
	c.ask(t, ctx, 201, "POST", "/v1/knowledge-bases", object{"name": "Shelf", "chunking": object{"max_tokens": 60, "overlap_tokens": 0}, "embedding": object{"provider": "simulated", "model": "any"}}, &base)
	if _, err := b.admin.Exec(ctx, watchShown); err != nil {
		t.Fatal(err)
	}
	s := &shelf{c: c, base: base.ID}
	placeholder := strings.Repeat("empty ", 400) // a bill is told from that of a search by its size
	volumes := make([]*volume, 12)
	for i := range volumes {
		volumes[i] = &volume{name: fmt.Sprintf("volume%02d", i), canary: i%4 == 3}
		if v := volumes[i]; v.canary { // nothing secret is put before the ACL is set
			if a, err := putDocuments(ctx, c, s.base, map[string][]byte{v.name + ".md": []byte(placeholder)}); err != nil || a.status != 202 {
				t.Fatal(a, err)
			} else {
				var list struct{ Items []struct{ ID string } }
				if err := json.Unmarshal(a.body, &list); err != nil {
					t.Fatal(err)
				}
				v.id = list.Items[0].ID
			}
			c.ask(t, ctx, 200, "PUT", "/v1/knowledge-bases/"+s.base+"/documents/"+v.id+"/acls", object{"items": []object{{"principal": "group", "name": "board"}}}, nil)
		}
	}
	stop := make(chan struct{})
	var owners sync.WaitGroup
	for _, v := range volumes {
		owners.Go(func() { s.live(t, ctx, v, stop) })
	}
	const kills = 5
	runs := newLoad(t, b, b.book)
	runs.run(t, 4*time.Minute, crowd{talkers: 1, clerks: 1}, func(ctx context.Context) {
		for i := range kills {
			pauseFor(ctx, 500*time.Millisecond+rand.N(time.Second))
			m := b.nodes[i%len(b.nodes)]
			m.kill()
			pauseFor(ctx, rand.N(1500*time.Millisecond))
			m.back(ctx)
		}
	})
	close(stop)
	owners.Wait()

	// The end is definite: what has an unknown outcome is settled by one more version.
	for _, v := range volumes {
		eventually(t, ctx, v.name+" is put", func() bool {
			s.put(ctx, v)
			return v.known == v.version
		})
	}
	for _, v := range volumes {
		path := "/v1/knowledge-bases/" + s.base + "/documents/" + v.id
		var d struct {
			Status string
			Error  *string
			Chunks int
		}
		eventually(t, ctx, v.name+" is ready", func() bool {
			c.ask(t, ctx, 200, "GET", path, nil, &d)
			if d.Status == "failed" {
				t.Fatalf("%s failed: %v", v.name, *d.Error)
			}
			return d.Status == "ready"
		})
		if !v.canary {
			newest := fmt.Sprintf("version v%d ", v.version)
			eventually(t, ctx, v.name+" is found in its last version", func() bool {
				hits, ok := s.find(ctx, v.name)
				return ok && slices.ContainsFunc(hits, func(h found) bool {
					return strings.Contains(h.Text, "document "+v.name+" ") && strings.Contains(h.Text, newest)
				})
			})
		}
		s.look(t, ctx, v)
	}
	text := func(sql string, args ...any) (out string) {
		t.Helper()
		if err := b.admin.QueryRow(ctx, sql, args...).Scan(&out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	eventually(t, ctx, "no chunk is left that nothing shows", func() bool {
		return text("SELECT count(*)::text FROM kb_chunks c LEFT JOIN kb_documents d ON d.tenant_id = c.tenant_id AND d.id = c.document_id AND d.shown = c.generation AND d.deleted_at IS NULL WHERE d.id IS NULL") == "0"
	})
	if got := text("SELECT count(*)::text FROM kb_documents WHERE deleted_at IS NULL AND (status <> 'ready' OR owes OR chunks <> (SELECT count(*) FROM kb_chunks c WHERE c.tenant_id = kb_documents.tenant_id AND c.document_id = kb_documents.id) OR chunks <> (SELECT count(DISTINCT position) FROM kb_chunks c WHERE c.document_id = kb_documents.id))"); got != "0" {
		t.Errorf("%s documents are not ready with each of their chunks once", got)
	}
	if got := text("SELECT count(*)::text FROM kb_documents WHERE deleted_at IS NULL"); got != fmt.Sprint(len(volumes)) {
		t.Errorf("%s documents, want %d", got, len(volumes))
	}
	if got := text("SELECT count(*)::text FROM kb_chunks WHERE vector IS NULL"); got != "0" {
		t.Errorf("%s chunks have no vector", got)
	}
	if got := text(misbilled); got != "0" {
		t.Errorf("%s transactions show other generations than they bill", got)
	}
	// The law finds what it is for.
	for _, plant := range []string{
		"DELETE FROM usage_records WHERE xmin::text IN (SELECT xmin::text FROM shown WHERE attempts = 1 LIMIT 1)",
		"INSERT INTO usage_records (tenant_id, id, at, kind, tokens_in) SELECT tenant_id, gen_random_uuid(), at, kind, tokens_in FROM usage_records WHERE kind = 'embedding' AND tokens_in > 100 LIMIT 1",
	} {
		tx, err := b.admin.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var got string
		_, err = tx.Exec(ctx, plant)
		if err := errors.Join(err, tx.QueryRow(ctx, misbilled).Scan(&got), tx.Rollback(ctx)); err != nil || got != "1" {
			t.Errorf("after %q the bills of %s transactions are wrong, %v", plant, got, err)
		}
	}
	generations := text("SELECT count(*) || ' generations, ' || count(*) FILTER (WHERE attempts > 1) || ' of them begun more than once' FROM shown")
	rulings := newRulings()
	runs.find(t).hold(b.book, rulings)
	rulings.report(t)
	b.book.report(t)
	b.book.notVoid(t, lawAccepted)
	versions := 0
	for _, v := range volumes {
		versions += v.version
	}
	if s.searches.Load() < 50 {
		t.Errorf("only %d searches were answered: the test is void", s.searches.Load())
	}
	t.Logf("%d kills, %d versions of %d documents, %s, %d searches", kills, versions, len(volumes), generations, s.searches.Load())
}
