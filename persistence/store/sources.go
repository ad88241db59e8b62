package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/schedule"
	"agentsvc/schemas/source"
)

const sourceWord = "knowledge source"

// sourceRow is a listed row.
type sourceRow struct {
	ID             id.SourceID
	Kind           lifecycle.SourceKind
	Name           string
	Config         api.Value
	Schedule       *string
	Timezone       string
	Enabled        bool
	Status         lifecycle.SourceStatus
	LastSyncedAt   *time.Time
	LastError      *string
	CredentialKeys []string
	Listed         int
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

func (r *sourceRow) shown() *api.Source {
	return &api.Source{ID: r.ID, Kind: r.Kind, Name: r.Name, Config: r.Config, Schedule: r.Schedule, Timezone: r.Timezone, Enabled: r.Enabled, Status: r.Status,
		LastSyncedAt: r.LastSyncedAt, LastError: r.LastError, CredentialMeta: api.CredentialKeys{Keys: r.CredentialKeys}, Listed: r.Listed,
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt}
}

// Sources returns the sources of a knowledge base, newest first. A base that does not exist has
// none: callers look it up.
func (v View) Sources(ctx context.Context, base id.KnowledgeBaseID, at id.SourceID, limit int) ([]api.Source, error) {
	from, n := before(at.UUID, limit)
	rows, err := listed[sourceRow](ctx, v, "sources", v.tenant, base, from, n)
	if err != nil {
		return nil, err
	}
	out := make([]api.Source, len(rows))
	for i := range rows {
		out[i] = *rows[i].shown()
	}
	return out, nil
}

// Source returns one source of a knowledge base.
func (v View) Source(ctx context.Context, base id.KnowledgeBaseID, s id.SourceID) (*api.Source, error) {
	row, err := found[sourceRow](sourceWord)(one[sourceRow](ctx, v, "source", v.tenant, base, s))
	if err != nil {
		return nil, err
	}
	return row.shown(), nil
}

// URLs checks an address that a tenant set, and returns an error that may be shown. A web source
// may be plain http, others get credentials and may not.
type URLs func(ctx context.Context, url string, plain bool) error

// CheckSource validates what the schema of a body cannot express: the configuration with its
// addresses, and the credentials. It needs no transaction, because it may resolve names.
func CheckSource(ctx context.Context, check URLs, kind lifecycle.SourceKind, config []byte, credentials map[string]string) error {
	c, bad := source.ParseConfig(kind, config)
	if credentials != nil {
		bad = append(bad, source.CheckCredentials(kind, credentials)...)
	}
	if len(bad) == 0 {
		for _, a := range c.Addresses() {
			if err := check(ctx, a.URL, kind == lifecycle.SourceWeb); err != nil {
				bad = append(bad, problem.Field{Path: a.Path, Message: err.Error()})
			}
		}
	}
	if len(bad) > 0 {
		return problem.Validation(bad...)
	}
	return nil
}

// SourceAt returns the AAD of a source's credentials: a JSON object of texts.
func SourceAt(t id.TenantID, s id.SourceID) vault.AAD {
	return vault.AAD{Tenant: t, Table: "knowledge_sources", Row: s.String(), Column: "credentials"}
}

func (t *Tx) sealSource(s id.SourceID, credentials map[string]string) ([]byte, []string, error) {
	return t.sealTexts(SourceAt(t.tenant, s), credentials)
}

// CreateSource creates a source of a knowledge base; it does not sync. The body has passed
// CheckSource.
func (t *Tx) CreateSource(ctx context.Context, base id.KnowledgeBaseID, in *api.SourceCreate) (*api.Source, error) {
	if err := t.holdBase(ctx, base); err != nil {
		return nil, err
	}
	row := &sourceRow{ID: id.SourceID{UUID: id.NewAnywhere()}, Kind: in.Kind, Schedule: in.Schedule, Timezone: cmp.Or(in.Timezone, "UTC"), Enabled: in.Enabled == nil || *in.Enabled}
	next, err := t.nextSync(ctx, row)
	if err != nil {
		return nil, err
	}
	sealed, keys, err := t.sealSource(row.ID, in.Credentials)
	if err != nil {
		return nil, err
	}
	made, err := one[sourceRow](ctx, t.View, "source_insert", t.tenant, row.ID, base, string(in.Kind), in.Name, jsonArg([]byte(in.Config.Text())), sealed, keys,
		row.Schedule, row.Timezone, row.Enabled, next)
	if err != nil {
		return nil, fmt.Errorf("insert source: %w", err)
	}
	if err := t.setSync(ctx, row.ID, next); err != nil {
		return nil, err
	}
	return made.shown(), t.Audit(ctx, "kb.source.create", "kb.source", row.ID.UUID, nil)
}

func (t *Tx) holdBase(ctx context.Context, base id.KnowledgeBaseID) error {
	rows, err := scalars[id.UUID](ctx, t.View, "source_base", t.tenant, base)
	if err == nil && len(rows) == 0 {
		return problem.NotFound("knowledge base")
	}
	return err
}

// nextSync validates the times of a source and returns when it is due next, counted from now;
// nil if it is not.
func (t *Tx) nextSync(ctx context.Context, r *sourceRow) (*time.Time, error) {
	if _, err := schedule.Parse(everyMinute, r.Timezone); err != nil {
		return nil, problem.Invalid("timezone", err.Error())
	}
	if r.Schedule == nil {
		return nil, nil
	}
	if r.Kind == lifecycle.SourceUpload {
		return nil, problem.Invalid("schedule", "the kind upload takes no schedule")
	}
	times, err := schedule.Parse(*r.Schedule, r.Timezone)
	if err != nil {
		return nil, problem.Invalid("schedule", err.Error())
	}
	if !r.Enabled {
		return nil, nil
	}
	now, err := scalars[time.Time](ctx, t.View, "source_moment")
	if err != nil {
		return nil, err
	}
	next := times.Next(now[0])
	return &next, nil
}

// setSync brings the timer of a source in line with its row.
func (t *Tx) setSync(ctx context.Context, s id.SourceID, next *time.Time) error {
	var err error
	if next != nil {
		_, err = t.exec(ctx, "source_timer_set", t.tenant, s, *next)
	} else {
		_, err = t.exec(ctx, "source_timer_drop", t.tenant, s)
	}
	if err != nil {
		return fmt.Errorf("set the timer of source %s: %w", s, err)
	}
	return nil
}

// UpdateSource changes the fields set in the patch. A configuration at another origin drops the
// credentials, unless the body has some. A change of the configuration makes the next sync a full
// one, and a sync on its way begin anew; disabling ends it. The caller has checked config and
// credentials with CheckSource, and wakes the source's actor afterwards.
func (t *Tx) UpdateSource(ctx context.Context, base id.KnowledgeBaseID, s id.SourceID, in *api.SourcePatch) (*api.SourceUpdated, error) {
	row, err := found[sourceRow](sourceWord)(one[sourceRow](ctx, t.View, "source_lock", t.tenant, base, s))
	if err != nil {
		return nil, err
	}
	if in.Kind != nil && *in.Kind != row.Kind {
		return nil, problem.Invalid("kind", "cannot be changed")
	}
	config := row.Config
	if in.Config != nil {
		config = api.Value(in.Config)
	}
	from, _ := source.ParseConfig(row.Kind, json.RawMessage(row.Config)) // what was stored was valid
	to, bad := source.ParseConfig(row.Kind, json.RawMessage(config))
	if in.Credentials != nil {
		bad = append(bad, source.CheckCredentials(row.Kind, in.Credentials)...)
	}
	if len(bad) > 0 {
		return nil, problem.Validation(bad...)
	}
	old := *row
	set(&row.Name, in.Name)
	if in.Timezone != nil {
		row.Timezone = cmp.Or(*in.Timezone, "UTC")
	}
	set(&row.Enabled, in.Enabled)
	row.Schedule = in.Schedule.OrPtr(row.Schedule)
	next, err := t.nextSync(ctx, row)
	if err != nil {
		return nil, err
	}
	moves := row.Timezone != old.Timezone || row.Enabled != old.Enabled || in.Schedule.Set
	var detail any
	var sealed []byte
	keys, replace, dropped := []string{}, in.Credentials != nil, false
	if replace {
		if sealed, keys, err = t.sealSource(s, in.Credentials); err != nil {
			return nil, err
		}
	}
	if source.Moved(from, to) {
		dropped = !replace && len(row.CredentialKeys) > 0
		replace = replace || dropped
		detail = moved{OldOrigin: strings.Join(from.Origins(), " "), NewOrigin: strings.Join(to.Origins(), " "), CredentialsDropped: dropped}
	}
	row, err = one[sourceRow](ctx, t.View, "source_update", t.tenant, base, s, row.Name, jsonArg(config), row.Schedule, row.Timezone,
		replace, sealed, keys, next, moves, string(config) != string(old.Config), row.Enabled)
	if err != nil {
		return nil, fmt.Errorf("update source: %w", err)
	}
	if moves {
		if err := t.setSync(ctx, s, next); err != nil {
			return nil, err
		}
	}
	return &api.SourceUpdated{Source: *row.shown(), CredentialsDropped: dropped}, t.Audit(ctx, "kb.source.update", "kb.source", s.UUID, detail)
}

// SyncSource queues a sync, unless one is queued or on its way. If it has queued one, the caller wakes
// the source's actor afterwards. A disabled source is SOURCE_DISABLED.
func (t *Tx) SyncSource(ctx context.Context, base id.KnowledgeBaseID, s id.SourceID) (out *api.SourceSync, queued bool, err error) {
	row, err := found[sourceRow](sourceWord)(one[sourceRow](ctx, t.View, "source_lock", t.tenant, base, s))
	if err != nil {
		return nil, false, err
	}
	if !row.Enabled {
		return nil, false, problem.New(problem.CodeSourceDisabled, "The knowledge source is disabled.")
	}
	n, err := t.exec(ctx, "source_queue", t.tenant, base, s)
	if err != nil {
		return nil, false, fmt.Errorf("queue a sync: %w", err)
	}
	return &api.SourceSync{Status: lifecycle.SourceQueued}, n > 0, t.Audit(ctx, "kb.source.sync", "kb.source", s.UUID, nil)
}

// DeleteSource deletes a source with its documents, which no search sees afterwards. The caller
// wakes the source's actor, which ends a sync on its way.
func (t *Tx) DeleteSource(ctx context.Context, base id.KnowledgeBaseID, s id.SourceID) error {
	if err := t.execFound(ctx, problem.NotFound(sourceWord), "source_delete", t.tenant, base, s); err != nil {
		return err
	}
	if err := t.setSync(ctx, s, nil); err != nil {
		return err
	}
	documents, err := t.exec(ctx, "source_delete_documents", t.tenant, s)
	if err != nil {
		return fmt.Errorf("delete the documents of source %s: %w", s, err)
	}
	return t.Audit(ctx, "kb.source.delete", "kb.source", s.UUID, map[string]int64{"documents": documents})
}

// deleteSources deletes the sources of a base that is being deleted, with their timers. The base's
// documents are deleted by the caller.
func (t *Tx) deleteSources(ctx context.Context, base id.KnowledgeBaseID) error {
	for _, step := range []string{"sources_delete", "sources_delete_timers"} {
		if _, err := t.exec(ctx, step, t.tenant, base); err != nil {
			return fmt.Errorf("delete the sources of base %s: %w", base, err)
		}
	}
	return nil
}
