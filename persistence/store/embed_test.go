package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/apikey"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// embeds is a tenant's agent with an embed key.
type embeds struct {
	*world
	t     *testing.T
	agent id.AgentID
	key   *api.EmbedKeyCreated
	keys  *EmbedKeys
}

func newEmbeds(t *testing.T) *embeds {
	t.Helper()
	w := &embeds{world: newWorld(t), t: t}
	w.keys = NewEmbedKeys(w.db.System(t), w.vault)
	w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
		w.agent, err = tx.agent(ctx, nil)
		return err
	})
	w.key = w.create("Shop")
	return w
}

func (w *embeds) create(name string) (out *api.EmbedKeyCreated) {
	w.t.Helper()
	w.change(w.t, w.a, func(ctx context.Context, tx *Tx) (err error) {
		out, err = tx.CreateEmbedKey(ctx, &api.EmbedKeyCreate{AgentID: w.agent, Name: name, AllowedOrigins: []string{"https://a.example"}, WithIdentitySecret: true,
			Theme: &api.EmbedTheme{Accent: "#112233"}, Config: &api.EmbedDisplayConfig{Title: "T"}})
		return err
	})
	return out
}

func (w *embeds) find() *EmbedAccess {
	w.t.Helper()
	a, err := w.keys.Find(w.t.Context(), w.key.ID)
	if err != nil || a == nil {
		w.t.Fatal(a, err)
	}
	return a
}

// secret is a key's identity secret.
func (w *embeds) secret(a *EmbedAccess) string {
	w.t.Helper()
	s, err := w.keys.Open(a)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(s.Reveal())
}

// An identity secret that cannot be opened fails only calls with an identity token.
func TestAnIdentitySecretThatDoesNotOpen(t *testing.T) {
	t.Parallel()
	w := newEmbeds(t)
	a := w.find()
	a.IdentitySecret = append(vault.Sealed(nil), a.IdentitySecret...)
	a.IdentitySecret[len(a.IdentitySecret)-1] ^= 1
	if s, err := w.keys.Open(a); err == nil {
		t.Errorf("opened to %q", s.Reveal())
	}
	a.IdentitySecret = nil
	if s, err := w.keys.Open(a); err != nil || len(s.Reveal()) != 0 {
		t.Errorf("none: %q %v", s.Reveal(), err)
	}
}

// An embed key is found by its id alone, in every state. Each change that ends its sessions
// raises the generation.
func TestEmbedKeysAreFound(t *testing.T) {
	t.Parallel()
	w := newEmbeds(t)
	_, hash, err := apikey.ParsePublishable(w.key.Key)
	if err != nil {
		t.Fatal(err)
	}
	a := w.find()
	if a.Tenant != w.a || a.ID != w.key.ID || a.Agent != w.agent || a.AgentName == "" || !a.Hash.Equal(hash) || fmt.Sprint(a.Origins) != "[https://a.example]" || !a.Enabled || a.Revoked ||
		a.Generation != 1 || a.RateLimitPerMin != 60 || a.IdentityRequired || w.secret(a) != w.key.IdentitySecret || a.Theme.Accent != "#112233" || a.Config.Title != "T" {
		t.Errorf("%+v", a)
	}
	if strings.Contains(fmt.Sprintf("%+v %#v", a, a), w.key.IdentitySecret) {
		t.Error("the identity secret is printed")
	}
	if none, err := w.keys.Find(t.Context(), id.EmbedKeyID{UUID: id.NewAnywhere()}); none != nil || err != nil {
		t.Errorf("an unknown key: %+v %v", none, err)
	}
	yes, no := true, false
	k := w.key.ID
	for _, step := range []struct {
		name       string
		do         func(ctx context.Context, tx *Tx) error
		generation int64
		state      string
	}{
		{"other origins", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateEmbedKey(ctx, k, &api.EmbedKeyPatch{AllowedOrigins: &[]string{}}))
		}, 1, "enabled"},
		{"paused", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateEmbedKey(ctx, k, &api.EmbedKeyPatch{Enabled: &no}))
		}, 2, "paused"},
		{"paused again", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateEmbedKey(ctx, k, &api.EmbedKeyPatch{Enabled: &no}))
		}, 2, "paused"},
		{"resumed", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateEmbedKey(ctx, k, &api.EmbedKeyPatch{Enabled: &yes}))
		}, 2, "enabled"},
		{"rotated", func(ctx context.Context, tx *Tx) error { return second(tx.RotateEmbedKey(ctx, k)) }, 3, "enabled"},
		{"another secret", func(ctx context.Context, tx *Tx) error { return second(tx.SetIdentitySecret(ctx, k)) }, 3, "enabled"},
		{"revoked", func(ctx context.Context, tx *Tx) error { return tx.RevokeEmbedKey(ctx, k) }, 4, "revoked"},
		{"revoked again", func(ctx context.Context, tx *Tx) error { return tx.RevokeEmbedKey(ctx, k) }, 4, "revoked"},
	} {
		before := w.find()
		w.change(t, w.a, step.do)
		a := w.find()
		state := "enabled"
		switch {
		case a.Revoked:
			state = "revoked"
		case !a.Enabled:
			state = "paused"
		}
		if a.Generation != step.generation || state != step.state {
			t.Errorf("%s: generation %d, %s", step.name, a.Generation, state)
		}
		if other := !a.Hash.Equal(before.Hash); other != (step.name == "rotated") {
			t.Errorf("%s: another value is accepted: %v", step.name, other)
		}
		if other := w.secret(a) != w.secret(before); other != (step.name == "another secret") {
			t.Errorf("%s: another secret: %v", step.name, other)
		}
	}
	if n := w.count(t, "SELECT count(*) FROM audit_log WHERE tenant_id = $1 AND target_id = $2", w.a, k); n != 8 { // and its making
		t.Errorf("%d audit rows", n)
	}
}

// An archived agent's keys are revoked with it; a key that is being created meanwhile is
// refused, or revoked too. No wait is endless.
func TestArchivingRevokesEmbedKeys(t *testing.T) {
	t.Parallel()
	w := newEmbeds(t)
	for round := range 10 {
		if round > 0 {
			w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
				w.agent, err = tx.agent(ctx, nil)
				return err
			})
			w.key = w.create("Shop")
		}
		no := false
		var answered []id.EmbedKeyID
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				var p *problem.Error
				err := w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
					return second(tx.CreateEmbedKey(ctx, &api.EmbedKeyCreate{AgentID: w.agent, Name: fmt.Sprint(i), AllowedOrigins: []string{}}))
				})
				if err != nil && !isCode(err, problem.CodeValidation) {
					t.Errorf("create: %v %v", err, p)
				}
				err = w.try(t, w.a, func(ctx context.Context, tx *Tx) error {
					return second(tx.UpdateEmbedKey(ctx, w.key.ID, &api.EmbedKeyPatch{Enabled: &no}))
				})
				if err != nil && !isCode(err, problem.CodeNotFound) {
					t.Errorf("update: %v", err)
				}
			})
		}
		wg.Go(func() {
			if err := w.try(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
				answered, err = tx.ArchiveAgent(ctx, w.agent)
				return err
			}); err != nil {
				t.Errorf("archive: %v", err)
			}
		})
		wg.Wait()
		if n := w.count(t, "SELECT count(*) FROM embed_keys WHERE agent_id = $1 AND revoked_at IS NULL", w.agent); n != 0 {
			t.Fatalf("%d keys of an archived agent are not revoked", n)
		}
		if a := w.find(); !a.Revoked {
			t.Fatal("the key of an archived agent is accepted")
		}
		ended, err := w.View(w.a).ArchivedEmbedKeys(t.Context(), w.agent)
		if made := w.count(t, "SELECT count(*) FROM embed_keys WHERE agent_id = $1", w.agent); err != nil || len(ended) != made {
			t.Fatalf("%d of %d keys ended with their agent, %v", len(ended), made, err)
		}
		inOrder := func(a, b id.EmbedKeyID) int { return bytes.Compare(a.UUID[:], b.UUID[:]) }
		if slices.SortFunc(ended, inOrder); !slices.Equal(slices.SortedFunc(slices.Values(answered), inOrder), ended) {
			t.Fatalf("the call returned %v; revoked are %v", answered, ended)
		}
		if n := w.count(t, "SELECT count(*) FROM audit_log WHERE action = 'embed_key.revoke' AND tenant_id = $1", w.a); n < len(ended) {
			t.Fatalf("%d revocations in the audit log", n)
		}
	}
}

// open-parts.md, End users: a token updates the stored data of a person; one row, one token
// after the other.
func TestUpsertEndUser(t *testing.T) {
	t.Parallel()
	w := newEmbeds(t)
	said := func(s string) *string { return &s }
	var first id.EndUserID
	for i, row := range []struct {
		name        string
		user, email *string
		meta        string
		want        string // name, email, attributes
		written     bool
	}{
		{"a new one", said("Kim"), nil, "", `"Kim" null {}`, true},
		{"the same again", said("Kim"), nil, "", `"Kim" null {}`, false},
		{"nothing said", nil, nil, "", `"Kim" null {}`, false},
		{"an email", nil, said("kim@example.com"), "", `"Kim" "kim@example.com" {}`, true},
		{"meta", nil, nil, `{"plan": "pro"}`, `"Kim" "kim@example.com" {"meta":{"plan":"pro"}}`, true},
		{"the same meta", nil, nil, `{"plan":"pro"}`, `"Kim" "kim@example.com" {"meta":{"plan":"pro"}}`, false},
		{"groups", nil, nil, `{"groups": ["a", "b"]}`, `"Kim" "kim@example.com" {"groups":["a","b"],"meta":{"groups":["a","b"]}}`, true},
		{"meta without groups", nil, nil, `{"x": "<&>"}`, `"Kim" "kim@example.com" {"groups":["a","b"],"meta":{"x":"<&>"}}`, true},
		{"groups that are no array", nil, nil, `{"groups": "all"}`, `"Kim" "kim@example.com" {"groups":["a","b"],"meta":{"groups":"all"}}`, true},
		{"no groups", nil, nil, `{"groups": []}`, `"Kim" "kim@example.com" {"groups":[],"meta":{"groups":[]}}`, true},
		{"an empty name", said(""), nil, "", `null "kim@example.com" {"groups":[],"meta":{"groups":[]}}`, true},
		{"and again", said(""), nil, "", `null "kim@example.com" {"groups":[],"meta":{"groups":[]}}`, false},
	} {
		version := func() (x string) {
			if err := w.db.Admin(t).QueryRow(t.Context(), "SELECT coalesce(max(xmin::text || ctid::text), '') FROM end_users WHERE tenant_id = $1", w.a).Scan(&x); err != nil {
				t.Fatal(err)
			}
			return x
		}
		before := version()
		var u id.EndUserID
		w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
			var meta json.RawMessage
			if row.meta != "" {
				meta = json.RawMessage(row.meta)
			}
			u, err = tx.UpsertEndUser(ctx, "customer-1", row.user, row.email, meta)
			return err
		})
		if i == 0 {
			first = u
		}
		got, err := w.View(w.a).EndUser(t.Context(), u)
		if err != nil || u != first {
			t.Fatalf("%s: %v, %v", row.name, u, err)
		}
		name, _ := json.Marshal(got.Name)
		email, _ := json.Marshal(got.Email)
		if shown := fmt.Sprintf("%s %s %s", name, email, got.Attributes); shown != row.want || got.ExternalID != "customer-1" {
			t.Errorf("%s: %s", row.name, shown)
		}
		if written := version() != before; written != row.written {
			t.Errorf("%s: written %v", row.name, written)
		}
	}
	// The tenant's data stays; a deleted person starts as a new end user.
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		if err := second(tx.UpdateEndUser(ctx, first, &api.EndUserPatch{Attributes: api.Object(`{"own": 1, "meta": {}}`), Tags: &[]string{"vip"}})); err != nil {
			return err
		}
		return second(tx.UpsertEndUser(ctx, "customer-1", nil, nil, json.RawMessage(`{"y":2}`)))
	})
	if got, err := w.View(w.a).EndUser(t.Context(), first); err != nil || string(got.Attributes) != `{"meta":{"y":2},"own":1}` || fmt.Sprint(got.Tags) != "[vip]" {
		t.Errorf("%+v, %v", got, err)
	}
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.DeleteEndUser(ctx, first) })
	if live, err := w.View(w.a).EndUserLive(t.Context(), first); live || err != nil {
		t.Error("the deleted end user is found", err)
	}
	var again id.EndUserID
	w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
		again, err = tx.UpsertEndUser(ctx, "customer-1", nil, nil, nil)
		return err
	})
	if live, err := w.View(w.a).EndUserLive(t.Context(), again); !live || err != nil || again == first {
		t.Errorf("the new end user is %v, the deleted one was %v, %v", again, first, err)
	}
	if live, _ := w.View(w.b).EndUserLive(t.Context(), again); live {
		t.Error("another tenant's end user is found")
	}
}

// A person's threads with open runs come first, then the newest.
func TestThreadsOfAnEndUser(t *testing.T) {
	t.Parallel()
	w := newEmbeds(t)
	sys := w.db.System(t)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := sys.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	u, other := id.EndUserID{UUID: id.NewAnywhere()}, id.EndUserID{UUID: id.NewAnywhere()}
	var threads []id.ThreadID // oldest first
	thread := func(of id.EndUserID, deleted bool, runs ...string) {
		t.Helper()
		th := id.ThreadID{UUID: id.NewAnywhere()}
		th.UUID[5] = byte(len(threads)) // the end of the id's time
		threads = append(threads, th)
		exec("INSERT INTO threads (tenant_id, id, agent_id, created_by, end_user_id, deleted_at) VALUES ($1, $2, $3, 'embed:eu:x', $4, CASE WHEN $5 THEN now() END)", w.a, th, w.agent, of, deleted)
		for seq, status := range runs {
			exec(`INSERT INTO runs (tenant_id, id, status, agent_id, thread_id, thread_seq, origin_kind, origin_id, created_at, finished_at, person_id)
				VALUES ($1, $2, $3::text, $4, $5, $6, 'api_key', $1, now(), CASE WHEN $3::text = 'succeeded' THEN now() END, $7)`, w.a, id.NewAnywhere(), status, w.agent, th, seq, of)
		}
	}
	thread(u, false, "succeeded", "running", "queued") // 0
	thread(u, false, "succeeded")
	thread(u, true, "running")
	thread(other, false, "running")
	thread(u, false, "waiting_approval") // 4
	thread(u, false)
	thread(u, false, "succeeded") // 6
	for limit, want := range map[int][]int{9: {4, 0, 6, 5, 1}, 3: {4, 0, 6}, 1: {4}} {
		got, err := w.View(w.a).ThreadsOfEndUser(t.Context(), u, limit)
		if err != nil {
			t.Fatal(err)
		}
		var places []int
		for _, th := range got {
			places = append(places, slices.Index(threads, th))
		}
		if !slices.Equal(places, want) {
			t.Errorf("the first %d are %v, want %v", limit, places, want)
		}
	}
	if got, err := w.View(w.b).ThreadsOfEndUser(t.Context(), u, 9); err != nil || len(got) > 0 {
		t.Errorf("another tenant sees %v, %v", got, err)
	}
}

// Lists by tag have the end users whose tags have it, whoever changed them: nodes of the former release write rows only.
func TestEndUsersByTag(t *testing.T) {
	t.Parallel()
	w := newEmbeds(t)
	var ids [4]id.EndUserID
	w.change(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
		for i := range ids {
			if ids[i], err = tx.UpsertEndUser(ctx, fmt.Sprint("person ", i), nil, nil, nil); err != nil {
				return err
			}
		}
		return nil
	})
	tag := func(i int, tags ...string) {
		t.Helper()
		w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
			_, err := tx.UpdateEndUser(ctx, ids[i], &api.EndUserPatch{Tags: &tags})
			return err
		})
	}
	expect := func(what, tag string, external *string, want ...int) {
		t.Helper()
		got, err := w.View(w.a).EndUsers(t.Context(), EndUserFilter{Tag: &tag, ExternalID: external}, id.EndUserID{}, 10)
		if err != nil {
			t.Fatal(err)
		}
		var places []int
		for _, u := range got {
			places = append(places, slices.Index(ids[:], u.ID))
		}
		if !slices.Equal(places, want) {
			t.Errorf("%s: %v, want %v", what, places, want)
		}
	}
	tag(0, "vip", "new", "vip")
	tag(1, "new")
	tag(2, "vip")
	expect("newest first", "vip", nil, 2, 0)
	expect("of one", "vip", ptr("person 0"), 0)
	expect("of one without it", "vip", ptr("person 1"))
	if next, err := w.View(w.a).EndUsers(t.Context(), EndUserFilter{Tag: ptr("vip")}, ids[2], 10); err != nil || len(next) != 1 || next[0].ID != ids[0] {
		t.Errorf("the next page: %+v, %v", next, err)
	}
	if theirs, err := w.View(w.b).EndUsers(t.Context(), EndUserFilter{Tag: ptr("vip")}, id.EndUserID{}, 10); err != nil || len(theirs) > 0 {
		t.Errorf("another tenant sees %+v, %v", theirs, err)
	}
	tag(0, "new")
	expect("a tag less", "vip", nil, 2)
	expect("the others stay", "new", nil, 1, 0)
	if _, err := w.db.Admin(t).Exec(t.Context(), `UPDATE end_users SET tags = '{vip,rare}' WHERE id = $1`, ids[3]); err != nil {
		t.Fatal(err)
	}
	expect("by another writer", "vip", nil, 3, 2)
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error { return tx.DeleteEndUser(ctx, ids[2]) })
	expect("a deleted one", "vip", nil, 3)
	if _, err := w.db.Admin(t).Exec(t.Context(), `DELETE FROM end_users WHERE id = $1`, ids[3]); err != nil {
		t.Fatal(err)
	}
	if n := w.count(t, "SELECT count(*) FROM end_user_tags WHERE tenant_id = $1 AND tag <> 'new'", w.a); n != 0 {
		t.Errorf("%d tags of no end user", n)
	}
}

// Concurrent tokens of one person make one row, with the data of one of them.
func TestConcurrentUpsertsAreOneEndUser(t *testing.T) {
	t.Parallel()
	w := newEmbeds(t)
	for round := range 20 {
		ids := make([]id.EndUserID, 3)
		var begun, wg sync.WaitGroup
		begun.Add(len(ids))
		for i := range ids {
			wg.Go(func() {
				name := fmt.Sprint("Kim ", i)
				if err := w.try(t, w.a, func(ctx context.Context, tx *Tx) (err error) {
					begun.Done()
					begun.Wait()
					ids[i], err = tx.UpsertEndUser(ctx, fmt.Sprint("one of ", round), &name, nil, json.RawMessage(`{"groups":["a"]}`))
					return err
				}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, u := range ids {
			if u != ids[0] {
				t.Fatalf("%v and %v", u, ids[0])
			}
		}
	}
	if n := w.count(t, "SELECT count(*) FROM end_users WHERE tenant_id = $1 AND name LIKE 'Kim %'", w.a); n != 20 {
		t.Errorf("%d rows", n)
	}
}
