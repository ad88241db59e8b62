package platform

import (
	"bytes"
	"context"
	"strconv"
	"unicode/utf8"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/embed"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

type listEndUsers struct {
	api.Page
	ExternalID *string `query:"external_id" maxLength:"255"`
	Tag        *string `query:"tag" maxLength:"60"`
}

type oneEndUser struct {
	ID id.EndUserID `path:"id"`
}

type patchEndUser struct {
	ID   id.EndUserID `path:"id"`
	Body api.EndUserPatch
}

const endUsers = "End users"

// Limits of an end user's fields.
const (
	maxAttributes = 16 << 10
	maxEndName    = 120
	maxEndEmail   = 320
	maxLabel      = 60
	maxTags       = 50
)

func (p *Platform) endUserRoutes(t *edge.Table) {
	describeEndUsers(t)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/end-users", ID: "listEndUsers", Answer: listed(sampleEndUser),
		Summary: "List end users", Description: "Newest first. All filters given must match; tag is matched exactly.", Tag: endUsers, Role: lifecycle.RoleMember}, p.listEndUsers)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/end-users/{id}", ID: "getEndUser", Answer: sampleEndUser,
		Summary: "Read an end user", Tag: endUsers, Role: lifecycle.RoleMember}, p.getEndUser)
	edge.Handle(t, edge.Route{Method: "PATCH", Path: "/v1/end-users/{id}", ID: "updateEndUser", Answer: sampleEndUser,
		Summary:     "Change an end user",
		Description: "The next identity token overwrites name, email, attributes.meta and attributes.groups again.", Tag: endUsers, Role: lifecycle.RoleAdmin,
		Example: map[string]any{"tags": []string{"vip"}, "residency": "eu"}}, p.updateEndUser)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/end-users/{id}", ID: "deleteEndUser", Summary: "Delete an end user and their data",
		Description: "The end user's sessions end at once. Their threads and runs with all contents are erased within minutes; the cost stays, without the person's id. The same person may start again as a new end user.",
		Tag:         endUsers, Role: lifecycle.RoleAdmin}, p.deleteEndUser)
}

// revokedEndUser is the revocation for a deleted end user.
func revokedEndUser(c *edge.Caller, u id.EndUserID) msg.Revoked {
	return msg.Revoked{What: msg.RevokedEndUser, Tenant: c.Tenant, EndUser: u}
}

func (p *Platform) listEndUsers(ctx context.Context, c *edge.Caller, in *listEndUsers) (*api.List[api.EndUser], error) {
	f := store.EndUserFilter{ExternalID: in.ExternalID, Tag: in.Tag}
	return list(ctx, p.Store.View(c.Tenant), in.Page, "end-users", func(v store.View, ctx context.Context, at id.EndUserID, limit int) ([]api.EndUser, error) {
		return v.EndUsers(ctx, f, at, limit)
	}, func(u api.EndUser) id.EndUserID { return u.ID })
}

func (p *Platform) getEndUser(ctx context.Context, c *edge.Caller, in *oneEndUser) (*api.EndUser, error) {
	return p.Store.View(c.Tenant).EndUser(ctx, in.ID)
}

// updateEndUser needs no broadcast: nodes cache only that an end user exists.
func (p *Platform) updateEndUser(ctx context.Context, c *edge.Caller, in *patchEndUser) (*api.EndUser, error) {
	if bad := checkEndUser(&in.Body); len(bad) > 0 {
		return nil, problem.Validation(bad...)
	}
	return change(ctx, p, c, with2((*store.Tx).UpdateEndUser, in.ID, &in.Body))
}

// checkEndUser validates a change of an end user.
func checkEndUser(in *api.EndUserPatch) (bad []problem.Field) {
	short := func(field, s string, most int) {
		switch n := utf8.RuneCountInString(s); {
		case n < 1 || n > most:
			bad = append(bad, problem.Field{Path: field, Message: "must have 1 to " + strconv.Itoa(most) + " characters"})
		case embed.HasControl(s, ""):
			bad = append(bad, problem.Field{Path: field, Message: "must not have control characters"})
		}
	}
	for _, f := range []struct {
		name string
		opt  api.Opt[string]
		most int
	}{{"name", in.Name, maxEndName}, {"email", in.Email, maxEndEmail}, {"residency", in.Residency, maxLabel}} {
		if s, ok := f.opt.Get(); ok {
			short(f.name, s, f.most)
		}
	}
	if len(bytes.TrimSpace(in.Attributes)) > maxAttributes {
		bad = append(bad, problem.Field{Path: "attributes", Message: "must have at most " + strconv.Itoa(maxAttributes) + " bytes"})
	}
	if in.Tags != nil {
		seen := map[string]bool{}
		for i, s := range *in.Tags {
			field := "tags[" + strconv.Itoa(i) + "]"
			if short(field, s, maxLabel); seen[s] {
				bad = append(bad, problem.Field{Path: field, Message: "is there twice"})
			}
			seen[s] = true
		}
		if len(*in.Tags) > maxTags {
			bad = append(bad, problem.Field{Path: "tags", Message: "must have at most " + strconv.Itoa(maxTags) + " entries"})
		}
	}
	return bad
}

// threadsAtOnce is how many threads of an end user are deleted before the response, those
// with open runs first. The sweep deletes the rest.
const threadsAtOnce = 20

// deleteEndUser returns once the person's sessions have ended on every node. The sweep erases
// the remaining data (docs/adr/0027). The threads are told here already, because that cancels
// the runs in progress.
func (p *Platform) deleteEndUser(ctx context.Context, c *edge.Caller, in *oneEndUser) (*edge.Empty, error) {
	out, err := change(ctx, p, c, none1((*store.Tx).DeleteEndUser, in.ID))
	if out, err = removed(ctx, p, revokedEndUser(c, in.ID), out, err); err != nil {
		return out, err
	}
	threads, err := p.Store.View(c.Tenant).ThreadsOfEndUser(ctx, in.ID, threadsAtOnce)
	if err != nil {
		return out, nil // the end user is deleted: the sweep deletes the threads
	}
	for _, t := range threads {
		order := msg.DeleteThread{Op: id.OpID{UUID: id.New(t.Shard())}, By: sender(c)}
		if _, err := ask[msg.Done](ctx, p, c, msg.KindThread, t.UUID, order); err != nil {
			return out, nil // the sweep deletes these too
		}
	}
	return out, nil
}
