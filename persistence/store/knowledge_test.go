package store

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/feed"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
)

// library is a tenant with an empty base.
type library struct {
	*world
	t    *testing.T
	base id.KnowledgeBaseID
}

func newLibrary(t *testing.T) *library {
	t.Helper()
	w := &library{world: newWorld(t), t: t}
	w.base = w.create(w.a, api.KnowledgeBaseCreate{}).ID
	return w
}

func (w *library) create(t id.TenantID, in api.KnowledgeBaseCreate) (out *api.KnowledgeBase) {
	w.t.Helper()
	w.change(w.t, t, func(ctx context.Context, tx *Tx) (err error) {
		in.Name = "Guides"
		out, err = tx.CreateKnowledgeBase(ctx, &in)
		return err
	})
	return out
}

// put puts documents of the given names into the base.
func (w *library) put(names ...string) (docs []api.Document, old []id.FileID) {
	w.t.Helper()
	w.change(w.t, w.a, func(ctx context.Context, tx *Tx) (err error) {
		docs, old, err = tx.PutDocuments(ctx, w.base, uploads(names...))
		return err
	})
	return docs, old
}

func uploads(names ...string) (out []NewDocument) {
	for _, n := range names {
		out = append(out, NewDocument{File: id.FileID{UUID: id.NewAnywhere()}, Name: n, MediaType: "text/plain", SizeBytes: 5, SHA256: [32]byte{1}})
	}
	return out
}

// state is what the row of a document shows to its actor.
type state struct {
	Version, Content int
	Owes, Deleted    bool
	Status           string
	ACL              string
}

func (w *library) state(d id.DocumentID) (s state) {
	w.t.Helper()
	if err := w.db.Admin(w.t).QueryRow(w.t.Context(), "SELECT version, content, owes, deleted_at IS NOT NULL, status, array_to_string(acl, ' ') FROM kb_documents WHERE tenant_id = $1 AND id = $2", w.a, d).
		Scan(&s.Version, &s.Content, &s.Owes, &s.Deleted, &s.Status, &s.ACL); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// indexed makes the documents of the tenant look as their actors leave them.
func (w *library) indexed() {
	w.t.Helper()
	if _, err := w.db.Admin(w.t).Exec(w.t.Context(), "UPDATE kb_documents SET owes = false, status = 'ready', chunks = 3 WHERE tenant_id = $1 AND deleted_at IS NULL", w.a); err != nil {
		w.t.Fatal(err)
	}
}

func (w *library) person(t id.TenantID, attributes string) (u id.EndUserID) {
	w.t.Helper()
	u = id.EndUserID{UUID: id.NewAnywhere()}
	if _, err := w.db.Admin(w.t).Exec(w.t.Context(), "INSERT INTO end_users (tenant_id, id, external_id, attributes) VALUES ($1, $2, $3, $4)", t, u, u.String(), attributes); err != nil {
		w.t.Fatal(err)
	}
	return u
}

// open-parts.md, Knowledge bases: defaults, and an overlap that fits.
func TestChunkingOfABase(t *testing.T) {
	t.Parallel()
	w := newLibrary(t)
	for name, c := range map[string]struct {
		create, patch *api.ChunkingSet
		want          api.Chunking // of the last body; zero: refused
	}{
		"nothing":                {nil, nil, api.Chunking{MaxTokens: 400, OverlapTokens: 60}},
		"both":                   {&api.ChunkingSet{MaxTokens: ptr(100), OverlapTokens: ptr(99)}, nil, api.Chunking{MaxTokens: 100, OverlapTokens: 99}},
		"no overlap":             {&api.ChunkingSet{OverlapTokens: ptr(0)}, nil, api.Chunking{MaxTokens: 400}},
		"small, without overlap": {&api.ChunkingSet{MaxTokens: ptr(60)}, nil, api.Chunking{MaxTokens: 60, OverlapTokens: 9}},
		"as large":               {&api.ChunkingSet{MaxTokens: ptr(100), OverlapTokens: ptr(100)}, nil, api.Chunking{}},
		"default as large":       {&api.ChunkingSet{OverlapTokens: ptr(400)}, nil, api.Chunking{}},
		"changed":                {nil, &api.ChunkingSet{MaxTokens: ptr(61)}, api.Chunking{MaxTokens: 61, OverlapTokens: 60}},
		"changed to too little":  {nil, &api.ChunkingSet{MaxTokens: ptr(60)}, api.Chunking{}},
	} {
		var got *api.KnowledgeBase
		err := w.try(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
			if got, err = tx.CreateKnowledgeBase(ctx, &api.KnowledgeBaseCreate{Name: "B", Chunking: c.create}); err == nil && c.patch != nil {
				got, _, err = tx.UpdateKnowledgeBase(ctx, got.ID, &api.KnowledgeBasePatch{Chunking: c.patch})
			}
			return err
		})
		if c.want.MaxTokens == 0 {
			if !isCode(err, problem.CodeValidation) || !strings.Contains(err.Error(), "chunking.overlap_tokens: ") {
				t.Errorf("%s: %v", name, err)
			}
		} else if err != nil || got.Chunking != c.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// A change of chunking or embedding indexes all documents anew; another change does not.
func TestAChangeOfABaseIndexesAnew(t *testing.T) {
	t.Parallel()
	w := newLibrary(t)
	docs, _ := w.put("a.txt", "b.txt", "gone.txt")
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.DeleteDocument(ctx, w.base, docs[2].ID) })
	e := api.Embedding{Provider: "p", Model: "m"}
	settings, version := 1, 1
	for _, c := range []struct {
		name  string
		patch api.KnowledgeBasePatch
		anew  bool
	}{
		{"name", api.KnowledgeBasePatch{Name: ptr("Other"), Description: ptr("D")}, false},
		{"the same chunking", api.KnowledgeBasePatch{Chunking: &api.ChunkingSet{MaxTokens: ptr(400)}}, false},
		{"chunking", api.KnowledgeBasePatch{Chunking: &api.ChunkingSet{MaxTokens: ptr(200)}}, true},
		{"embedding", api.KnowledgeBasePatch{Embedding: api.Some(e)}, true},
		{"the same embedding", api.KnowledgeBasePatch{Embedding: api.Some(e)}, false},
		{"another model", api.KnowledgeBasePatch{Embedding: api.Some(api.Embedding{Provider: "p", Model: "m2"})}, true},
		{"no embedding", api.KnowledgeBasePatch{Embedding: api.None[api.Embedding]()}, true},
		{"no embedding again", api.KnowledgeBasePatch{Embedding: api.None[api.Embedding]()}, false},
	} {
		w.indexed()
		var wake []id.DocumentID
		w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
			_, wake, err = tx.UpdateKnowledgeBase(ctx, w.base, &c.patch)
			return err
		})
		if c.anew {
			settings, version = settings+1, version+1
		}
		if n := w.count(t, "SELECT settings FROM knowledge_bases WHERE id = $1", w.base); n != settings {
			t.Errorf("%s: %d settings, want %d", c.name, n, settings)
		}
		for _, d := range docs[:2] {
			if s := w.state(d.ID); s.Version != version || s.Owes != c.anew || s.Status != "ready" || slices.Contains(wake, d.ID) != c.anew {
				t.Errorf("%s: %+v, version %d wanted, woken %v", c.name, s, version, wake)
			}
		}
	}
	if s := w.state(docs[2].ID); s.Version != 2 {
		t.Errorf("a deleted document: %+v", s)
	}
}

// A document put under a known name is replaced; its actor has work, and the old file is named.
func TestDocumentsAreReplacedByName(t *testing.T) {
	t.Parallel()
	w := newLibrary(t)
	first, old := w.put("b.txt", "a.txt")
	if len(old) != 0 || first[0].Name != "b.txt" || first[1].Name != "a.txt" || first[0].Status != lifecycle.DocumentQueued || first[0].URI != nil || first[0].SourceID != nil {
		t.Fatalf("%+v %v", first, old)
	}
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		_, err := tx.SetACL(ctx, w.base, first[1].ID, &api.ACL{Items: []api.ACLEntry{{Principal: "group", Name: "staff"}}})
		return err
	})
	w.indexed()
	was, err := w.View(w.a).DocumentContent(t.Context(), w.base, first[1].ID)
	if err != nil {
		t.Fatal(err)
	}
	again, old := w.put("c.txt", "a.txt")
	if again[1].ID != first[1].ID || len(old) != 1 || old[0] != was.File || again[1].Chunks != 3 {
		t.Errorf("%+v %v, want %v", again[1], old, was.File)
	}
	if s := w.state(first[1].ID); s != (state{Version: 2, Content: 2, Owes: true, Status: "queued", ACL: "group:staff"}) {
		t.Errorf("%+v", s)
	}
	if s := w.state(first[0].ID); s != (state{Version: 1, Content: 1, Status: "ready"}) {
		t.Errorf("a document beside it: %+v", s)
	}
	if n := w.count(t, "SELECT count(*)::int FROM audit_log WHERE tenant_id = $1 AND action = 'kb.document.update' AND target_id = $2", w.a, first[1].ID); n != 1 {
		t.Errorf("%d audit rows", n)
	}
	// A name that is free again is another document.
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.DeleteDocument(ctx, w.base, first[1].ID) })
	if s := w.state(first[1].ID); !s.Deleted || !s.Owes || s.Version != 3 {
		t.Errorf("deleted: %+v", s)
	}
	if third, old := w.put("a.txt"); third[0].ID == first[1].ID || len(old) != 0 {
		t.Errorf("%+v %v", third, old)
	}
}

// A document of a source does not share its name with uploads.
func TestASourcesDocumentIsAnotherOne(t *testing.T) {
	t.Parallel()
	w := newLibrary(t)
	var src *api.Source
	w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
		src, err = tx.CreateSource(ctx, w.base, &api.SourceCreate{Kind: lifecycle.SourceUpload, Name: "S"})
		return err
	})
	theirs := id.DocumentID{UUID: id.NewAnywhere()}
	if _, err := w.db.Admin(t).Exec(t.Context(), `INSERT INTO kb_documents (tenant_id, id, base_id, source_id, item, name, media_type, size_bytes, file, sha256)
		VALUES ($1, $2, $3, $4, 'i', 'a.txt', 'text/plain', 1, gen_random_uuid(), '')`, w.a, theirs, w.base, src.ID); err != nil {
		t.Fatal(err)
	}
	mine, old := w.put("a.txt")
	if mine[0].ID == theirs || len(old) != 0 {
		t.Fatalf("%+v %v", mine, old)
	}
	for name, c := range map[string]struct {
		f    DocumentFilter
		want []id.DocumentID
	}{
		"all":        {DocumentFilter{}, []id.DocumentID{mine[0].ID, theirs}},
		"the source": {DocumentFilter{Source: &src.ID}, []id.DocumentID{theirs}},
		"queued":     {DocumentFilter{Status: ptr(lifecycle.DocumentQueued)}, []id.DocumentID{mine[0].ID, theirs}},
		"ready":      {DocumentFilter{Status: ptr(lifecycle.DocumentReady)}, nil},
	} {
		docs, err := w.View(w.a).Documents(t.Context(), w.base, c.f, id.DocumentID{}, 10)
		if err != nil || len(docs) != len(c.want) {
			t.Errorf("%s: %+v, %v", name, docs, err)
			continue
		}
		for _, d := range docs {
			if !slices.Contains(c.want, d.ID) {
				t.Errorf("%s: %+v", name, d)
			}
		}
	}
}

// Uploads of the same names at the same moment end in one document of each name.
func TestUploadsOfTheSameNamesRace(t *testing.T) {
	t.Parallel()
	w := newLibrary(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			names := []string{"a", "b", "c", "d"}
			if i%2 == 1 {
				slices.Reverse(names)
			}
			err := w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
				_, _, err := tx.PutDocuments(ctx, w.base, uploads(names...))
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := w.count(t, "SELECT count(*)::int FROM kb_documents WHERE base_id = $1", w.base); n != 4 {
		t.Errorf("%d documents", n)
	}
	if n := w.count(t, "SELECT count(*)::int FROM kb_documents WHERE base_id = $1 AND (content <> 8 OR version <> 8)", w.base); n != 0 {
		t.Errorf("%d documents have another count of contents", n)
	}
}

// A deleted base takes its sources and documents along, and no upload comes after it.
func TestDeletingABase(t *testing.T) {
	t.Parallel()
	w := newLibrary(t)
	other := w.base
	w.base = w.create(w.a, api.KnowledgeBaseCreate{}).ID
	kept := w.base
	keptDocs, _ := w.put("kept.txt")
	w.base = other
	docs, _ := w.put("a.txt", "b.txt")
	w.indexed()
	cron := "0 4 * * *"
	var src *api.Source
	w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
		src, err = tx.CreateSource(ctx, w.base, &api.SourceCreate{Kind: lifecycle.SourceWeb, Name: "S", Config: api.Object(`{"url":"https://x.example/"}`), Schedule: &cron})
		return err
	})
	if n := w.count(t, "SELECT count(*)::int FROM timers WHERE kind = 'sync' AND entity_id = $1", src.ID); n != 1 {
		t.Fatalf("%d timers", n)
	}
	var wake []id.DocumentID
	var sources []id.SourceID
	w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
		wake, sources, err = tx.DeleteKnowledgeBase(ctx, w.base)
		return err
	})
	if len(wake) != 2 || len(sources) != 1 || sources[0] != src.ID {
		t.Errorf("woken: %v %v", wake, sources)
	}
	for _, d := range docs {
		if s := w.state(d.ID); !s.Deleted || !s.Owes || s.Version != 2 {
			t.Errorf("%+v", s)
		}
	}
	if s := w.state(keptDocs[0].ID); s.Deleted {
		t.Errorf("a document of another base: %+v", s)
	}
	if n := w.count(t, "SELECT count(*)::int FROM knowledge_sources WHERE base_id = $1 AND deleted_at IS NOT NULL AND version = 2", w.base); n != 1 {
		t.Errorf("%d deleted sources", n)
	}
	if n := w.count(t, "SELECT count(*)::int FROM timers WHERE kind = 'sync' AND entity_id = $1", src.ID); n != 0 {
		t.Errorf("%d timers", n)
	}
	v := w.View(w.a)
	for what, err := range map[string]error{
		"read":   second(v.KnowledgeBase(t.Context(), w.base)),
		"a doc":  second(v.Document(t.Context(), w.base, docs[0].ID)),
		"source": second(v.Source(t.Context(), w.base, src.ID)),
		"put": w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
			return third(tx.PutDocuments(ctx, w.base, uploads("new.txt")))
		}),
		"again": w.try(t, w.a, func(ctx context.Context, tx *Tx) error { return third(tx.DeleteKnowledgeBase(ctx, w.base)) }),
	} {
		if !isCode(err, problem.CodeNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	live, err := v.LiveBases(t.Context(), []id.UUID{w.base.UUID, kept.UUID, id.NewAnywhere()})
	if err != nil || len(live) != 1 || live[0] != kept.UUID {
		t.Errorf("live: %v, %v", live, err)
	}
}

// A base that is deleted while an upload commits has no live document afterwards.
func TestUploadsRaceTheDeletionOfTheirBase(t *testing.T) {
	t.Parallel()
	w := newLibrary(t)
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			err := w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
				if i == 3 {
					return third(tx.DeleteKnowledgeBase(ctx, w.base))
				}
				return third(tx.PutDocuments(ctx, w.base, uploads(fmt.Sprint(i))))
			})
			if err != nil && !isCode(err, problem.CodeNotFound) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := w.count(t, "SELECT count(*)::int FROM kb_documents WHERE base_id = $1 AND deleted_at IS NULL", w.base); n != 0 {
		t.Errorf("%d documents", n)
	}
}

// open-parts.md, ACLs: principals are checked and kept once each; the version stays.
func TestACLs(t *testing.T) {
	t.Parallel()
	w := newLibrary(t)
	docs, _ := w.put("a.txt")
	d := docs[0].ID
	mine, theirs := w.person(w.a, "{}"), w.person(w.b, "{}")
	erased := w.person(w.a, "{}")
	many := func(n int) (out []api.ACLEntry) {
		for i := range n {
			out = append(out, api.ACLEntry{Principal: "group", Name: fmt.Sprint("g", i)})
		}
		return out
	}
	for _, c := range []struct {
		name string
		in   []api.ACLEntry
		code problem.Code
		at   string // field of a VALIDATION, the row's text otherwise
	}{
		{"all kinds", []api.ACLEntry{{Principal: "public"}, {Principal: "end_user", ID: &mine}, {Principal: "group", Name: "a:b c"}, {Principal: "public"}, {Principal: "group", Name: "a:b c"}, {Principal: "end_user", ID: &mine}}, "",
			"public end_user:" + mine.String() + " group:a:b c"},
		{"a person to be erased", []api.ACLEntry{{Principal: "end_user", ID: &erased}}, "", "end_user:" + erased.String()},
		{"most", many(200), "", ""},
		{"nobody in particular", nil, "", ""},
		{"a foreign person", []api.ACLEntry{{Principal: "end_user", ID: &theirs}}, problem.CodeNotFound, ""},
		{"a person and a foreign one", []api.ACLEntry{{Principal: "end_user", ID: &mine}, {Principal: "end_user", ID: &theirs}}, problem.CodeNotFound, ""},
		{"no id", []api.ACLEntry{{Principal: "public"}, {Principal: "end_user"}}, problem.CodeValidation, "items[1].id"},
		{"an id too many", []api.ACLEntry{{Principal: "group", Name: "x", ID: &mine}}, problem.CodeValidation, "items[0].id"},
		{"no name", []api.ACLEntry{{Principal: "group"}}, problem.CodeValidation, "items[0].name"},
		{"a name too many", []api.ACLEntry{{Principal: "public", Name: "x"}}, problem.CodeValidation, "items[0].name"},
		{"a NUL", []api.ACLEntry{{Principal: "group", Name: "x\x00"}}, problem.CodeValidation, "items[0].name"},
	} {
		before := w.state(d)
		var out *api.ACL
		err := w.try(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
			out, err = tx.SetACL(ctx, w.base, d, &api.ACL{Items: c.in})
			return err
		})
		after := w.state(d)
		if c.code != "" {
			if !isCode(err, c.code) || !strings.Contains(err.Error(), c.at) || after != before {
				t.Errorf("%s: %v, row %+v", c.name, err, after)
			}
			continue
		}
		shown, readErr := w.View(w.a).ACL(t.Context(), w.base, d)
		a, _ := json.Marshal(out)
		b, _ := json.Marshal(shown)
		if err != nil || readErr != nil || string(a) != string(b) || c.at != "" && after.ACL != c.at || after.Version != 1 || len(c.in) == 0 && string(b) != `{"items":[]}` {
			t.Errorf("%s: %v %v %s %s %+v", c.name, err, readErr, a, b, after)
		}
	}
	var detail string
	if err := w.db.Admin(t).QueryRow(t.Context(), "SELECT detail::text FROM audit_log WHERE tenant_id = $1 AND action = 'kb.document.acl.set' ORDER BY id LIMIT 1", w.a).Scan(&detail); err != nil ||
		detail != `{"knowledge_base_id":"`+w.base.String()+`","public":true,"end_users":1,"groups":1}` {
		t.Errorf("audited %s, %v", detail, err)
	}
	// The principal of an erased person stays and matches nobody.
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		_, err := tx.SetACL(ctx, w.base, d, &api.ACL{Items: []api.ACLEntry{{Principal: "end_user", ID: &erased}}})
		if err != nil {
			return err
		}
		return tx.DeleteEndUser(ctx, erased)
	})
	if acl, err := w.View(w.a).ACL(t.Context(), w.base, d); err != nil || len(acl.Items) != 1 {
		t.Errorf("%+v %v", acl, err)
	}
	if _, err := w.View(w.a).Viewer(t.Context(), &erased); !isCode(err, problem.CodeNotFound) {
		t.Errorf("a search for an erased person: %v", err)
	}
}

// open-parts.md, End users: the groups of a person are the texts of attributes.groups.
func TestViewers(t *testing.T) {
	t.Parallel()
	w := newLibrary(t)
	for attributes, want := range map[string][]string{
		`{}`:                                   nil,
		`{"groups":"staff"}`:                   nil,
		`{"groups":null}`:                      nil,
		`{"groups":[]}`:                        nil,
		`{"groups":["a","b",1,null,["c"]]}`:    {"group:a", "group:b"},
		`{"groups":["A b","x:y"],"meta":{}}`:   {"group:A b", "group:x:y"},
		`{"meta":{"groups":["not a member"]}}`: nil,
	} {
		u := w.person(w.a, attributes)
		got, err := w.View(w.a).Viewer(t.Context(), &u)
		if all := append([]string{"public", "end_user:" + u.String()}, want...); err != nil || !slices.Equal(got, all) {
			t.Errorf("%s: %v, %v", attributes, got, err)
		}
		if _, err := w.View(w.b).Viewer(t.Context(), &u); !isCode(err, problem.CodeNotFound) {
			t.Errorf("%s: of another tenant: %v", attributes, err)
		}
	}
	if got, err := w.View(w.a).Viewer(t.Context(), nil); err != nil || !slices.Equal(got, []string{"public"}) {
		t.Errorf("nobody: %v %v", got, err)
	}
}

// Another tenant's ids, and ids of another base, are no rows.
func TestForeignKnowledge(t *testing.T) {
	t.Parallel()
	w := newLibrary(t)
	docs, _ := w.put("a.txt")
	d, base := docs[0].ID, w.base
	elsewhere := w.create(w.a, api.KnowledgeBaseCreate{}).ID
	for name, c := range map[string]struct {
		tenant id.TenantID
		base   id.KnowledgeBaseID
	}{"another tenant": {w.b, base}, "another base": {w.a, elsewhere}} {
		v := w.View(c.tenant)
		for what, err := range map[string]error{
			"read":    second(v.Document(t.Context(), c.base, d)),
			"content": second(v.DocumentContent(t.Context(), c.base, d)),
			"acl":     second(v.ACL(t.Context(), c.base, d)),
			"delete":  w.try(t, c.tenant, func(ctx context.Context, tx *Tx) error { return tx.DeleteDocument(ctx, c.base, d) }),
			"set acl": w.try(t, c.tenant, func(ctx context.Context, tx *Tx) error {
				return second(tx.SetACL(ctx, c.base, d, &api.ACL{}))
			}),
		} {
			if !isCode(err, problem.CodeNotFound) {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
	}
	for what, err := range map[string]error{
		"base": second(w.View(w.b).KnowledgeBase(t.Context(), base)),
		"update": w.try(t, w.b, func(ctx context.Context, tx *Tx) error {
			return third(tx.UpdateKnowledgeBase(ctx, base, &api.KnowledgeBasePatch{}))
		}),
		"delete": w.try(t, w.b, func(ctx context.Context, tx *Tx) error { return third(tx.DeleteKnowledgeBase(ctx, base)) }),
		"put":    w.try(t, w.b, func(ctx context.Context, tx *Tx) error { return third(tx.PutDocuments(ctx, base, uploads("x"))) }),
	} {
		if !isCode(err, problem.CodeNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if s := w.state(d); s.Deleted || s.Version != 1 {
		t.Errorf("%+v", s)
	}
}

// Files of documents: a row keeps its file, also after the deletion, until its actor is done.
func TestFilesOfDocuments(t *testing.T) {
	t.Parallel()
	w := newLibrary(t)
	docs, _ := w.put("a.txt")
	c, err := w.View(w.a).DocumentContent(t.Context(), w.base, docs[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	kept := DocumentFile(w.a, c.File)
	f := NewFiles(w.db.System(t))
	if sums, err := f.Sums(t.Context(), []string{kept}); err != nil || len(sums) != 1 || sums[kept] != [32]byte{1} {
		t.Errorf("sums %v, %v", sums, err)
	}
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.DeleteDocument(ctx, w.base, docs[0].ID) })
	foreign, orphan := DocumentFile(w.b, c.File), DocumentFile(w.a, id.FileID{UUID: id.NewAnywhere()})
	attachment := AttachmentFile(w.a, id.AttachmentID{UUID: c.File.UUID})
	keys := []string{kept, foreign, orphan, attachment, "documents/x/y", "documents/" + w.a.String()}
	got, err := f.Orphans(t.Context(), keys)
	want := []string{foreign, orphan, attachment}
	slices.Sort(got)
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("orphans %v, %v; want %v", got, err, want)
	}
	if sums, err := f.Sums(t.Context(), keys); err != nil || len(sums) != 0 {
		t.Errorf("sums after the deletion: %v, %v", sums, err)
	}
}

// Each names every file once: not those of deleted documents, nor of documents whose source has never given a content.
func TestEachFileThatARowNames(t *testing.T) {
	t.Parallel()
	w := newLibrary(t)
	docs, _ := w.put("a.txt", "b.txt")
	want := map[string]bool{}
	c, err := w.View(w.a).DocumentContent(t.Context(), w.base, docs[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	want[DocumentFile(w.a, c.File)] = true
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.DeleteDocument(ctx, w.base, docs[1].ID) })
	pool := w.db.System(t)
	if _, err := pool.Exec(t.Context(), `WITH source AS (
		INSERT INTO knowledge_sources (tenant_id, id, base_id, kind, name) VALUES ($1, gen_random_uuid(), $2, 'web', 's') RETURNING id)
		INSERT INTO kb_documents (tenant_id, id, base_id, source_id, item, name, media_type, size_bytes, file, sha256, status)
		SELECT $1, gen_random_uuid(), $2, id, 'i', 'never read', 'text/plain', 0, gen_random_uuid(), decode(repeat('00', 32), 'hex'), 'failed' FROM source`, w.a, w.base); err != nil {
		t.Fatal(err)
	}
	for _, tenant := range []id.TenantID{w.a, w.b} { // more than two pages
		rows, err := pool.Query(t.Context(), `INSERT INTO attachments (tenant_id, id, name, media_type, size_bytes, sha256, created_by)
			SELECT $1, gen_random_uuid(), 'x', 'x', 7, sha256('x'), 'x' FROM generate_series(1, 1100) RETURNING id`, tenant)
		if err != nil {
			t.Fatal(err)
		}
		made, err := pgx.CollectRows(rows, pgx.RowTo[id.AttachmentID])
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range made {
			want[AttachmentFile(tenant, a)] = true
		}
	}
	got := map[string]bool{}
	if err := NewFiles(pool).Each(t.Context(), func(page []StoredFile) error {
		for _, s := range page {
			if got[s.Key] || s.Sum == [32]byte{} || strings.HasPrefix(s.Key, "attachments/") && (s.Size != 7 || s.Sum != sha256.Sum256([]byte("x"))) {
				t.Errorf("%+v", s)
			}
			got[s.Key] = true
		}
		return nil
	}); err != nil || !maps.Equal(got, want) {
		t.Errorf("%d files, %v; want %d", len(got), err, len(want))
	}
}

// The row of a deleted base goes once it is old and nothing refers to it.
func TestRowsOfDeletedBasesGo(t *testing.T) {
	t.Parallel()
	w := newLibrary(t)
	docs, _ := w.put("a.txt")
	live := w.create(w.a, api.KnowledgeBaseCreate{}).ID
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		return third(tx.DeleteKnowledgeBase(ctx, w.base))
	})
	admin, system := w.db.Admin(t), w.db.System(t)
	at := slices.IndexFunc(Retentions, func(r feed.Retention) bool { return r.Name == "knowledge_bases" })
	left := func() (n int) {
		t.Helper()
		if _, _, err := Retentions[at].Pass(t.Context(), system, feed.Mark{}, 100); err != nil {
			t.Fatal(err)
		}
		if err := admin.QueryRow(t.Context(), "SELECT count(*) FROM knowledge_bases WHERE id = ANY($1)", []id.KnowledgeBaseID{w.base, live}).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec("UPDATE knowledge_bases SET deleted_at = now() - interval '9 days' WHERE id = $1", w.base)
	if n := left(); n != 2 {
		t.Errorf("%d bases are left while a document is there", n)
	}
	exec("DELETE FROM kb_documents WHERE id = $1", docs[0].ID)
	exec("UPDATE knowledge_bases SET deleted_at = now() - interval '7 days' WHERE id = $1", w.base)
	if n := left(); n != 2 {
		t.Errorf("%d bases are left after 7 days", n)
	}
	exec("UPDATE knowledge_bases SET deleted_at = now() - interval '9 days' WHERE id = $1", w.base)
	if n := left(); n != 1 {
		t.Errorf("%d bases are left after 9 days", n)
	}
}
