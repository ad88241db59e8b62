package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/jsontext"
	"agentsvc/schemas/problem"
)

const (
	endUserWord = "end user"
	endUserKind = "end_user" // in the audit log and in feeds
)

// EndUserFilter narrows a list of end users; nil fields match all.
type EndUserFilter struct {
	ExternalID *string
	Tag        *string
}

// args returns the query of the list and its arguments.
func (f *EndUserFilter) args(t id.TenantID, at id.EndUserID, limit int) (string, []any) {
	from, n := before(at.UUID, limit)
	if f.Tag != nil && f.ExternalID == nil {
		return "end_users_tagged", []any{t, from, f.Tag, n}
	}
	return "end_users", []any{t, from, f.ExternalID, f.Tag, n}
}

// EndUsers returns end users, newest first, after at; there may be one more than limit.
func (v View) EndUsers(ctx context.Context, f EndUserFilter, at id.EndUserID, limit int) ([]api.EndUser, error) {
	name, args := f.args(v.tenant, at, limit)
	return listed[api.EndUser](ctx, v.planned(), name, args...)
}

// EndUser returns one end user.
func (v View) EndUser(ctx context.Context, u id.EndUserID) (*api.EndUser, error) {
	return found[api.EndUser](endUserWord)(one[api.EndUser](ctx, v, "end_user", v.tenant, u))
}

// EndUserLive reports whether the end user exists and was not deleted.
func (v View) EndUserLive(ctx context.Context, u id.EndUserID) (bool, error) {
	rows, err := scalars[id.EndUserID](ctx, v, "end_user_live", v.tenant, u)
	return len(rows) > 0, err
}

// UpsertEndUser returns the end user with this external id, created or updated from an
// identity token (open-parts.md, End users). Nil values leave a field unchanged, an empty
// name or email clears it. meta goes into attributes.meta, and an array meta.groups into
// attributes.groups. If nothing changes, nothing is written.
func (t *Tx) UpsertEndUser(ctx context.Context, externalID string, name, email *string, meta json.RawMessage) (id.EndUserID, error) {
	said := identified{name, email, meta}
	for {
		known, err := one[api.EndUser](ctx, t.View, "end_user_known", t.tenant, externalID)
		if err != nil {
			return id.EndUserID{}, err
		}
		if known == nil {
			u := &api.EndUser{ID: id.EndUserID{UUID: id.NewAnywhere()}, Attributes: json.RawMessage("{}")}
			if _, err := said.over(u); err != nil {
				return id.EndUserID{}, err
			}
			made, err := scalars[id.EndUserID](ctx, t.View, "end_user_insert", t.tenant, u.ID, externalID, u.Name, u.Email, jsonArg(u.Attributes))
			if err != nil {
				return id.EndUserID{}, fmt.Errorf("insert end user: %w", err)
			}
			if len(made) == 1 {
				t.note(endUserKind, u.ID.UUID)
				return u.ID, nil
			}
			continue // another transaction created it first
		}
		if news, err := said.over(known); err != nil || !news {
			return known.ID, err
		}
		if known, err = one[api.EndUser](ctx, t.View, "end_user_lock", t.tenant, known.ID); err != nil {
			return id.EndUserID{}, err
		}
		if known == nil {
			continue // deleted in the meantime
		}
		if news, err := said.over(known); err != nil || !news {
			return known.ID, err
		}
		_, err = t.putEndUser(ctx, known)
		t.note(endUserKind, known.ID.UUID)
		return known.ID, err
	}
}

func (t *Tx) putEndUser(ctx context.Context, u *api.EndUser) (*api.EndUser, error) {
	row, err := one[api.EndUser](ctx, t.View, "end_user_update", t.tenant, u.ID, u.Name, u.Email, jsonArg(u.Attributes), u.Tags, u.Residency)
	if err != nil {
		return nil, fmt.Errorf("update end user %s: %w", u.ID, err)
	}
	return row, nil
}

// identified holds the data of an identity token about a person.
type identified struct {
	name, email *string         // nil: not given
	meta        json.RawMessage // an object; nil: not given
}

// over applies the token's data to u, and reports whether it changed anything.
func (s identified) over(u *api.EndUser) (news bool, err error) {
	for _, f := range []struct {
		known **string
		said  *string
	}{{&u.Name, s.name}, {&u.Email, s.email}} {
		if f.said == nil {
			continue
		}
		said := f.said
		if *said == "" {
			said = nil
		}
		if (said == nil) != (*f.known == nil) || said != nil && *said != **f.known {
			*f.known, news = said, true
		}
	}
	if s.meta == nil {
		return news, nil
	}
	attributes := map[string]json.RawMessage{}
	if err := json.Unmarshal(u.Attributes, &attributes); err != nil {
		return false, fmt.Errorf("read the attributes of end user %s: %w", u.ID, err)
	}
	said := map[string]json.RawMessage{}
	if err := json.Unmarshal(s.meta, &said); err != nil {
		return false, fmt.Errorf("read the meta of an identity token: %w", err)
	}
	groups := said["groups"]
	if len(groups) > 0 && groups[0] != '[' {
		groups = nil
	}
	changed := false
	for name, value := range map[string]json.RawMessage{"meta": s.meta, "groups": groups} {
		if value == nil {
			continue
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, value); err != nil {
			return false, fmt.Errorf("read the meta of an identity token: %w", err)
		}
		if !bytes.Equal(attributes[name], compact.Bytes()) {
			attributes[name], changed = compact.Bytes(), true
		}
	}
	if !changed {
		return news, nil
	}
	if u.Attributes, err = jsontext.Marshal(attributes); err != nil {
		return false, fmt.Errorf("encode the attributes of end user %s: %w", u.ID, err)
	}
	return true, nil
}

// UpdateEndUser changes the fields set in the patch. The caller must have checked it.
func (t *Tx) UpdateEndUser(ctx context.Context, u id.EndUserID, in *api.EndUserPatch) (*api.EndUser, error) {
	row, err := found[api.EndUser](endUserWord)(one[api.EndUser](ctx, t.View, "end_user_lock", t.tenant, u))
	if err != nil {
		return nil, err
	}
	row.Name = in.Name.OrPtr(row.Name)
	row.Email = in.Email.OrPtr(row.Email)
	row.Residency = in.Residency.OrPtr(row.Residency)
	set(&row.Tags, in.Tags)
	if in.Attributes != nil {
		row.Attributes = json.RawMessage(in.Attributes)
	}
	if row, err = t.putEndUser(ctx, row); err != nil {
		return nil, err
	}
	return row, t.Audit(ctx, "end_user.update", endUserKind, u.UUID, nil)
}

// DeleteEndUser deletes an end user. After the commit no query finds it, and its external id
// is free. Its data is erased afterwards (feed.Sweep).
func (t *Tx) DeleteEndUser(ctx context.Context, u id.EndUserID) error {
	if err := t.execFound(ctx, problem.NotFound(endUserWord), "end_user_delete", t.tenant, u); err != nil {
		return err
	}
	return t.Audit(ctx, "end_user.delete", endUserKind, u.UUID, nil)
}

// ThreadsOfEndUser returns up to limit threads of an end user, deleted or not, that are still
// to be deleted: those with open runs first, then the newest.
func (v View) ThreadsOfEndUser(ctx context.Context, u id.EndUserID, limit int) ([]id.ThreadID, error) {
	return scalars[id.ThreadID](ctx, v, "end_user_threads", v.tenant, u, limit)
}
