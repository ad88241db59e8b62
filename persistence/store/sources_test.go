package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// sourceWorld is a tenant with a knowledge base.
type sourceWorld struct {
	t      *testing.T
	admin  *pgxpool.Pool
	store  *Store
	syncs  *Syncs
	tenant id.TenantID
	base   id.KnowledgeBaseID
}

func newSourceWorld(t *testing.T) *sourceWorld {
	t.Helper()
	db, keys := pgtest.New(t), vault.New(vault.NewSecret32([32]byte{1}))
	w := &sourceWorld{t: t, admin: db.Admin(t), store: New(db.API(t), keys), syncs: NewSyncs(db.System(t), keys), base: id.KnowledgeBaseID{UUID: id.NewAnywhere()}}
	made, err := System(db.System(t), keys).CreateTenant(t.Context(), NewTenant{Name: "T", OwnerEmail: "o@example.com", KeyName: "first"})
	if err != nil {
		t.Fatal(err)
	}
	w.tenant = made.Tenant
	w.exec(`INSERT INTO knowledge_bases (tenant_id, id, name) VALUES ($1, $2, 'Base')`, w.tenant, w.base)
	return w
}

func (w *sourceWorld) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.admin.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *sourceWorld) try(fn func(ctx context.Context, tx *Tx) error) error {
	return w.store.Change(w.t.Context(), By{Tenant: w.tenant, Actor: "user:x"}, func(ctx context.Context, tx *Tx) ([]byte, error) { return nil, fn(ctx, tx) })
}

func (w *sourceWorld) create(in api.SourceCreate) (made *api.Source, err error) {
	in.Name = "S"
	err = w.try(func(ctx context.Context, tx *Tx) error { made, err = tx.CreateSource(ctx, w.base, &in); return err })
	return made, err
}

func (w *sourceWorld) update(s id.SourceID, in api.SourcePatch) (out *api.SourceUpdated, err error) {
	err = w.try(func(ctx context.Context, tx *Tx) error { out, err = tx.UpdateSource(ctx, w.base, s, &in); return err })
	return out, err
}

// timer returns when the timer of a source is due; zero: there is none.
func (w *sourceWorld) timer(s id.SourceID) (due time.Time) {
	w.t.Helper()
	if err := w.admin.QueryRow(w.t.Context(), `SELECT coalesce(max(due_at), '0001-01-01') FROM timers WHERE kind = 'sync' AND entity_id = $1`, s).Scan(&due); err != nil {
		w.t.Fatal(err)
	}
	return due
}

func wikiAt(host string) api.Object {
	b, _ := json.Marshal(map[string]string{"base_url": host})
	return b
}

var wikiKeys = map[string]string{"email": "a@example.com", "api_token": "canary-1"}

// TestSourceLife: created idle, listed without credentials, scheduled, changed, queued, deleted;
// each change is audited.
func TestSourceLife(t *testing.T) {
	t.Parallel()
	w := newSourceWorld(t)
	cron := "0 2 * * *"
	made, err := w.create(api.SourceCreate{Kind: lifecycle.SourceWiki, Config: wikiAt("https://w.example"), Credentials: wikiKeys, Schedule: &cron, Timezone: "Europe/Berlin"})
	if err != nil {
		t.Fatal(err)
	}
	if made.Status != lifecycle.SourceIdle || !made.Enabled || strings.Join(made.CredentialMeta.Keys, " ") != "api_token email" || made.LastError != nil || made.LastSyncedAt != nil {
		t.Errorf("%+v", made)
	}
	if due := w.timer(made.ID); !due.After(time.Now()) || due.After(time.Now().Add(25*time.Hour)) {
		t.Errorf("due at %v", due)
	}
	var sealed []byte
	if err := w.admin.QueryRow(t.Context(), `SELECT credentials FROM knowledge_sources WHERE id = $1`, made.ID).Scan(&sealed); err != nil || bytes.Contains(sealed, []byte("canary")) {
		t.Error("the credentials are not sealed", err)
	}
	list, err := w.store.View(w.tenant).Sources(t.Context(), w.base, id.SourceID{}, 10)
	if err != nil || len(list) != 1 || list[0].ID != made.ID {
		t.Errorf("%v %v", list, err)
	}
	if shown, _ := json.Marshal(list); bytes.Contains(shown, []byte("canary")) {
		t.Error("a list shows a credential")
	}
	off, on := false, true
	if out, err := w.update(made.ID, api.SourcePatch{Enabled: &off}); err != nil || out.Enabled || !w.timer(made.ID).IsZero() {
		t.Errorf("%v, timer %v", err, w.timer(made.ID))
	}
	queue := func(fresh bool) error {
		return w.try(func(ctx context.Context, tx *Tx) error {
			out, is, err := tx.SyncSource(ctx, w.base, made.ID)
			if err == nil && (out.Status != lifecycle.SourceQueued || is != fresh) {
				t.Error(out.Status, is)
			}
			return err
		})
	}
	if err := queue(true); !errors.Is(err, problem.New(problem.CodeSourceDisabled, "")) {
		t.Error(err)
	}
	if _, err := w.update(made.ID, api.SourcePatch{Enabled: &on}); err != nil || w.timer(made.ID).IsZero() {
		t.Error(err)
	}
	for _, fresh := range []bool{true, false} {
		if err := queue(fresh); err != nil {
			t.Error(err)
		}
	}
	if out, err := w.update(made.ID, api.SourcePatch{Schedule: api.None[string]()}); err != nil || out.Schedule != nil || out.Status != lifecycle.SourceQueued || !w.timer(made.ID).IsZero() {
		t.Errorf("%+v %v", out, err)
	}
	w.exec(`INSERT INTO kb_documents (tenant_id, id, base_id, source_id, item, name, media_type, size_bytes, file, sha256, owes) SELECT $1, gen_random_uuid(), $2, $3, n::text, 'D', 'text/plain', 1, gen_random_uuid(), '', false FROM generate_series(1, 3) n`,
		w.tenant, w.base, made.ID)
	remove := func() error {
		return w.try(func(ctx context.Context, tx *Tx) error { return tx.DeleteSource(ctx, w.base, made.ID) })
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	if err := remove(); !errors.Is(err, problem.New(problem.CodeNotFound, "")) {
		t.Error(err)
	}
	if _, err := w.store.View(w.tenant).Source(t.Context(), w.base, made.ID); !errors.Is(err, problem.New(problem.CodeNotFound, "")) {
		t.Error(err)
	}
	var left, cleaned, audited int
	if err := w.admin.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE deleted_at IS NULL), count(*) FILTER (WHERE owes AND version = 2) FROM kb_documents`).Scan(&left, &cleaned); err != nil || left != 0 || cleaned != 3 {
		t.Errorf("%d documents left, %d to be cleaned up, %v", left, cleaned, err)
	}
	if err := w.admin.QueryRow(t.Context(), `SELECT count(*) FROM audit_log WHERE target_kind = 'kb.source' AND target_id = $1 AND action IN ('kb.source.create', 'kb.source.update', 'kb.source.sync', 'kb.source.delete')`, made.ID).Scan(&audited); err != nil || audited != 7 {
		t.Errorf("%d rows of the audit log, %v", audited, err)
	}
}

// TestSourceRefusals: what a body cannot be, and what another tenant or base cannot reach.
func TestSourceRefusals(t *testing.T) {
	t.Parallel()
	w := newSourceWorld(t)
	bad, good := "every day", "0 2 * * *"
	for name, c := range map[string]struct {
		in   api.SourceCreate
		want string
	}{
		"an expression":          {api.SourceCreate{Kind: lifecycle.SourceWeb, Config: api.Object(`{"url":"https://x.example"}`), Schedule: &bad}, "schedule"},
		"a time zone":            {api.SourceCreate{Kind: lifecycle.SourceWeb, Config: api.Object(`{"url":"https://x.example"}`), Timezone: "Mars/Base"}, "timezone"},
		"a schedule for uploads": {api.SourceCreate{Kind: lifecycle.SourceUpload, Schedule: &good}, "schedule"},
	} {
		if _, err := w.create(c.in); !errors.Is(err, problem.New(problem.CodeValidation, "")) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	made, err := w.create(api.SourceCreate{Kind: lifecycle.SourceUpload})
	if err != nil {
		t.Fatal(err)
	}
	web := lifecycle.SourceWeb
	if _, err := w.update(made.ID, api.SourcePatch{Kind: &web}); !errors.Is(err, problem.New(problem.CodeValidation, "")) {
		t.Error(err)
	}
	if _, err := w.update(made.ID, api.SourcePatch{Config: api.Object(`{"x":1}`)}); !errors.Is(err, problem.New(problem.CodeValidation, "")) {
		t.Error(err)
	}
	if _, err := w.update(made.ID, api.SourcePatch{Credentials: map[string]string{"x": "y"}}); !errors.Is(err, problem.New(problem.CodeValidation, "")) {
		t.Error(err)
	}
	own := w.base
	w.base = id.KnowledgeBaseID{UUID: id.NewAnywhere()}
	missing := problem.New(problem.CodeNotFound, "")
	if _, err := w.create(api.SourceCreate{Kind: lifecycle.SourceUpload}); !errors.Is(err, missing) {
		t.Error(err)
	}
	if _, err := w.update(made.ID, api.SourcePatch{}); !errors.Is(err, missing) {
		t.Error(err)
	}
	for _, do := range []func(ctx context.Context, tx *Tx) error{
		func(ctx context.Context, tx *Tx) error { _, _, err := tx.SyncSource(ctx, w.base, made.ID); return err },
		func(ctx context.Context, tx *Tx) error { return tx.DeleteSource(ctx, w.base, made.ID) },
	} {
		if err := w.try(do); !errors.Is(err, missing) {
			t.Error(err)
		}
	}
	if _, err := w.store.View(id.TenantID{UUID: id.NewAnywhere()}).Source(t.Context(), own, made.ID); !errors.Is(err, missing) {
		t.Error(err)
	}
}

// TestSourceCredentialsFollowNoChangedAddress is open-parts.md, Changes, for sources.
func TestSourceCredentialsFollowNoChangedAddress(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config      api.Object
		credentials map[string]string
		dropped     bool
		keys        string
	}{
		"the same origin, written differently": {wikiAt("https://W.example:443/wiki/"), nil, false, "api_token email"},
		"another host":                         {wikiAt("https://v.example"), nil, true, ""},
		"another port":                         {wikiAt("https://w.example:8443"), nil, true, ""},
		"another scheme":                       {wikiAt("http://w.example"), nil, true, ""},
		"another host, with credentials":       {wikiAt("https://v.example"), wikiKeys, false, "api_token email"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSourceWorld(t)
			made, err := w.create(api.SourceCreate{Kind: lifecycle.SourceWiki, Config: wikiAt("https://w.example"), Credentials: wikiKeys})
			if err != nil {
				t.Fatal(err)
			}
			w.exec(`UPDATE knowledge_sources SET delta = 'd', status = 'ok' WHERE id = $1`, made.ID)
			out, err := w.update(made.ID, api.SourcePatch{Config: c.config, Credentials: c.credentials})
			if err != nil || out.CredentialsDropped != c.dropped || strings.Join(out.CredentialMeta.Keys, " ") != c.keys {
				t.Fatalf("%+v %v", out, err)
			}
			var sealed, delta bool
			if err := w.admin.QueryRow(t.Context(), `SELECT credentials IS NOT NULL, delta IS NOT NULL FROM knowledge_sources WHERE id = $1`, made.ID).Scan(&sealed, &delta); err != nil || sealed == (c.keys == "") || delta {
				t.Errorf("sealed %v, delta %v, %v", sealed, delta, err)
			}
			var detail string
			if err := w.admin.QueryRow(t.Context(), `SELECT coalesce(detail::text, '') FROM audit_log WHERE action = 'kb.source.update'`).Scan(&detail); err != nil || strings.Contains(detail, "canary") || c.dropped != strings.Contains(detail, `"credentials_dropped":true`) {
				t.Errorf("%s %v", detail, err)
			}
		})
	}
}

// TestWalksAreFenced: a walk writes while the row has its version and epoch, and opens the
// credentials.
func TestWalksAreFenced(t *testing.T) {
	t.Parallel()
	w := newSourceWorld(t)
	made, err := w.create(api.SourceCreate{Kind: lifecycle.SourceWiki, Config: wikiAt("https://w.example"), Credentials: wikiKeys})
	if err != nil {
		t.Fatal(err)
	}
	begin := func(epoch int64) (*BegunWalk, error) { return w.syncs.BeginWalk(t.Context(), w.tenant, made.ID, epoch) }
	if _, err := begin(0); !errors.Is(err, ErrLost) {
		t.Fatal("a walk of an idle source:", err)
	}
	if err := w.try(func(ctx context.Context, tx *Tx) error { _, _, err := tx.SyncSource(ctx, w.base, made.ID); return err }); err != nil {
		t.Fatal(err)
	}
	if _, err := begin(1); !errors.Is(err, ErrLost) {
		t.Fatal("a walk of another epoch:", err)
	}
	walk, err := begin(0)
	if err != nil || walk.Credentials["api_token"] != "canary-1" || walk.Config.BaseURL != "https://w.example" || walk.Mark != 1 {
		t.Fatalf("%+v %v", walk, err)
	}
	at := "here"
	if _, err := w.syncs.WriteWalk(t.Context(), &walk.Walk, &WalkPage{Resume: &at, Listed: 2}); err != nil {
		t.Fatal(err)
	}
	if again, err := begin(0); err != nil || again.Resume != "here" {
		t.Fatalf("%+v %v", again, err)
	}
	if _, err := w.syncs.WriteWalk(t.Context(), &walk.Walk, &WalkPage{Restart: true}); err != nil || walk.Mark != 2 {
		t.Fatal(walk.Mark, err)
	}
	w.exec(`UPDATE knowledge_sources SET version = version + 1`)
	if _, err := w.syncs.WriteWalk(t.Context(), &walk.Walk, &WalkPage{Listed: 1}); err != nil {
		t.Error("another version alone:", err)
	}
	for _, c := range []struct{ what, change, back string }{
		{"another sync", `sync = sync + 1`, `sync = sync`},
		{"another activation", `owner_epoch = owner_epoch + 1`, `owner_epoch = owner_epoch - 1`},
		{"disabling", `enabled = false`, `enabled = true`},
		{"an end", `status = 'ok'`, `status = 'syncing'`},
		{"deletion", `deleted_at = now()`, `deleted_at = NULL`},
	} {
		if walk, err = begin(0); err != nil {
			t.Fatal(c.what, err)
		}
		w.exec(`UPDATE knowledge_sources SET ` + c.change)
		if _, err := w.syncs.WriteWalk(t.Context(), &walk.Walk, &WalkPage{Gone: []id.DocumentID{{UUID: id.NewAnywhere()}}}); !errors.Is(err, ErrLost) {
			t.Errorf("%s: %v", c.what, err)
		}
		if _, err := w.syncs.DropUnmet(t.Context(), &walk.Walk, 10); !errors.Is(err, ErrLost) {
			t.Errorf("%s: %v", c.what, err)
		}
		w.exec(`UPDATE knowledge_sources SET ` + c.back)
	}
}

// What a walk changes is told to feeds: the source when it begins and goes on, and each document
// that is new, failed, renamed or gone. A document that is as it was is not told.
func TestWhatAWalkChangesIsTold(t *testing.T) {
	t.Parallel()
	w := newSourceWorld(t)
	made, err := w.create(api.SourceCreate{Kind: lifecycle.SourceWiki, Config: wikiAt("https://w.example"), Credentials: wikiKeys})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.try(func(ctx context.Context, tx *Tx) error { _, _, err := tx.SyncSource(ctx, w.base, made.ID); return err }); err != nil {
		t.Fatal(err)
	}
	var walk *BegunWalk
	all := noted(w.syncs, func() { walk, err = w.syncs.BeginWalk(t.Context(), w.tenant, made.ID, 0) })
	if err != nil || !slices.Equal(all, []msg.Change{{Kind: "kb.source", ID: made.ID.UUID}}) {
		t.Fatalf("a walk that begins tells %v, %v", all, err)
	}
	met := func(item, name string) MetDocument { return MetDocument{Item: item, Name: name} }
	known := func(items ...string) (docs []KnownDocument) {
		t.Helper()
		got, err := w.syncs.KnownDocuments(t.Context(), &walk.Walk, items)
		if err != nil || len(got) != len(items) {
			t.Fatalf("%v %v", got, err)
		}
		for _, i := range items {
			docs = append(docs, got[i])
		}
		return docs
	}
	// write tells of a page, and returns the documents that were told.
	write := func(p *WalkPage) []string {
		t.Helper()
		all := noted(w.syncs, func() {
			if _, err := w.syncs.WriteWalk(t.Context(), &walk.Walk, p); err != nil {
				t.Fatal(err)
			}
		})
		if got, want := only(all, "kb.source", made.ID); !slices.Equal(got, want) {
			t.Errorf("the page tells of the sources %v", got)
		}
		docs, _ := only[id.DocumentID](all, "kb.document")
		return docs
	}
	put := func(item string) PutDocument {
		return PutDocument{MetDocument: met(item, item), MediaType: "text/plain", SizeBytes: 1, File: id.FileID{UUID: id.NewAnywhere()}}
	}
	told := write(&WalkPage{Put: []PutDocument{put("a"), put("b")}, Failed: []FailedDocument{{met("c", "c"), "text/plain", "gone"}}})
	docs := known("a", "b", "c")
	want := func(what string, told []string, docs ...KnownDocument) {
		t.Helper()
		var ids []string
		for _, d := range docs {
			ids = append(ids, d.ID.String())
		}
		slices.Sort(ids)
		if !slices.Equal(told, ids) {
			t.Errorf("%s: told %v, want %v", what, told, ids)
		}
	}
	want("new and failed ones", told, docs...)
	renamed := docs[0]
	renamed.Name = "another name"
	want("renamed and unchanged ones", write(&WalkPage{Met: []KnownDocument{renamed, docs[1]}}), renamed)
	want("one that is gone", write(&WalkPage{Gone: []id.DocumentID{docs[1].ID}}), docs[1])
	want("one that fails again", write(&WalkPage{Failed: []FailedDocument{{met("c", "c"), "text/plain", "gone"}}}), docs[2])
	walk.Mark++ // as a sync after this one
	w.exec(`UPDATE knowledge_sources SET sync = sync + 1`)
	all = noted(w.syncs, func() { _, err = w.syncs.DropUnmet(t.Context(), &walk.Walk, 10) })
	dropped, _ := only[id.DocumentID](all, "kb.document")
	if err != nil {
		t.Fatal(err)
	}
	want("those that were not met", dropped, docs[0], docs[2])
}

// TestCheckSource: configuration, credentials, and addresses by the guard; plain http for websites
// only.
func TestCheckSource(t *testing.T) {
	t.Parallel()
	check := func(_ context.Context, url string, plain bool) error {
		if strings.Contains(url, "private") || strings.HasPrefix(url, "http:") && !plain {
			return errors.New("refused")
		}
		return nil
	}
	for _, c := range []struct {
		kind        lifecycle.SourceKind
		config      string
		credentials map[string]string
		want        string
	}{
		{lifecycle.SourceWeb, `{"url":"http://x.example"}`, nil, ""},
		{lifecycle.SourceWeb, `{"urls":["http://x.example","http://private.example"]}`, nil, "config.urls[1]: refused"},
		{lifecycle.SourceWiki, `{"base_url":"http://x.example"}`, nil, "config.base_url: refused"},
		{lifecycle.SourceWiki, `{"base_url":"https://x.example"}`, map[string]string{"email": "a"}, "credentials.api_token: is required"},
		{lifecycle.SourceObjectStore, `{"endpoint":"private.example","region":"a","bucket":"abc"}`, nil, "config.endpoint: refused"},
	} {
		err := CheckSource(t.Context(), check, c.kind, []byte(c.config), c.credentials)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.config, err)
		}
	}
}
