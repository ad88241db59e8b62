package platform

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

type listApprovals struct {
	api.PageOrAll
	Status  []lifecycle.ApprovalStatus `query:"status" maxItems:"7" doc:"repeat it for approvals of several statuses"`
	RunID   *id.RunID                  `query:"run_id"`
	AgentID *id.AgentID                `query:"agent_id"`
	Risk    *lifecycle.Risk            `query:"risk"`
	Tool    *string                    `query:"tool" minLength:"1" maxLength:"300" doc:"the qualified name of the tool"`
	Mine    bool                       `query:"mine" doc:"true: only pending ones that the caller may decide and has not decided on; all API keys are one caller"`
	Sort    store.ApprovalSort         `query:"sort" enum:"created,risk,expires" default:"created" doc:"created: newest first. risk: highest first, then soonest to expire. expires: soonest first."`
}

type oneApproval struct {
	ID id.ApprovalID `path:"id"`
}

type decideApproval struct {
	ID   id.ApprovalID `path:"id"`
	Body api.Decision
}

type decideApprovals struct{ Body api.BulkDecision }

func (p *Platform) approvalRoutes(t *edge.Table) {
	const tag = "Approvals"
	describeApprovals(t)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/approvals", ID: "listApprovals", Answer: api.All([]api.Approval{sampleApproval}),
		Summary:     "List approvals",
		Description: "The approvals that the caller's role may decide. A key sees all but those for owners. A cursor belongs to the order that it was made in.", Tag: tag, Role: lifecycle.RoleMember}, p.listApprovals)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/approvals/{id}", ID: "getApproval", Answer: sampleApproval,
		Summary: "Read an approval", Description: "Its arguments are redacted.", Tag: tag, Role: lifecycle.RoleMember}, p.getApproval)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/approvals/{id}/decision", ID: "decideApproval", Answer: sampleDecided,
		Summary: "Decide an approval",
		Description: "The call runs once enough distinct people have approved it; with edited_args, if an approver edited it. All API keys of a tenant count as one person: the decision of a second key is ALREADY_DECIDED. " +
			"reject and respond end the approval at once, and nothing runs.", Tag: tag, Role: lifecycle.RoleMember, Idempotent: true,
		Codes:   []problem.Code{problem.CodeAlreadyDecided, problem.CodeInvalidArgs},
		Example: map[string]any{"action": "edit", "edited_args": map[string]any{"order": 1001, "amount": 15}, "feedback": "Half is enough."}}, p.decideApproval)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/approvals/bulk-decision", ID: "decideApprovals", Answer: sampleBulkDecided,
		Summary:     "Decide up to 200 approvals",
		Description: "Each in its own transaction: some may be decided and others not. There is no edit.", Tag: tag, Role: lifecycle.RoleMember, Idempotent: true,
		Example: map[string]any{"ids": []string{sampleApprovalID.String()}, "action": "approve"}}, p.decideApprovals)
}

// approver returns which approvals the caller may decide. A caller whose role in the tenant
// is manager needs no managed nodes.
func (p *Platform) approver(ctx context.Context, c *edge.Caller) (store.Approver, error) {
	a := store.Approver{Role: c.Role}
	if c.Role.Satisfies(lifecycle.RoleManager) || c.User.IsZero() {
		return a, nil
	}
	var err error
	a.Nodes, err = p.Store.View(c.Tenant).ManagedNodes(ctx, c.User)
	return a, err
}

func (p *Platform) listApprovals(ctx context.Context, c *edge.Caller, in *listApprovals) (*api.Whole[api.Approval], error) {
	who, err := p.approver(ctx, c)
	if err != nil {
		return nil, err
	}
	f := store.ApprovalFilter{Statuses: in.Status, Run: in.RunID, Agent: in.AgentID, Risk: in.Risk, Tool: in.Tool, Sort: in.Sort}
	if in.Mine {
		f.Undecided = c.Principal
	}
	return whole(ctx, p.Store.View(c.Tenant), in.Page(), in.Sort.List(), store.ApprovalAt{}, 0, func(v store.View, ctx context.Context, at store.ApprovalAt, limit int) ([]api.Approval, error) {
		rows, err := v.Approvals(ctx, who, f, at, limit)
		for i := range rows {
			p.link(&rows[i])
		}
		return rows, err
	}, func(a api.Approval) store.ApprovalAt { return in.Sort.At(&a) })
}

// link sets the address of the page where people decide.
func (p *Platform) link(a *api.Approval) { a.URL = api.ApprovalURL(p.PublicURL, a.ID) }

func (p *Platform) getApproval(ctx context.Context, c *edge.Caller, in *oneApproval) (*api.Approval, error) {
	a, err := p.Store.View(c.Tenant).Approval(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	who, err := p.approver(ctx, c)
	if err != nil {
		return nil, err
	}
	if !who.Decides(a.AssigneeRole, a.Node) {
		return nil, problem.New(problem.CodeForbidden, "This approval is decided by the role "+string(a.AssigneeRole)+".")
	}
	p.link(&a.Approval)
	return &a.Approval, nil
}

func (p *Platform) decideApproval(ctx context.Context, c *edge.Caller, in *decideApproval) (*api.Decided, error) {
	if err := in.Body.Check(); err != nil {
		return nil, err
	}
	managed, err := p.managed(ctx, c, []id.ApprovalID{in.ID})
	if err != nil {
		return nil, err
	}
	order := p.order(c, &in.Body)
	order.Manages = len(managed) > 0
	if c.Idem != nil {
		order.Idempotency = &msg.Idempotency{Digest: digest(c.Idem.IdemKey), Fingerprint: c.Idem.Fingerprint, Status: c.Idem.Status}
	}
	return p.decide(ctx, c, in.ID, order)
}

func (p *Platform) order(c *edge.Caller, d *api.Decision) msg.Decide {
	op := id.OpID{UUID: id.NewAnywhere()}
	return msg.Decide{Op: op, Principal: c.Principal, Role: c.Role, Action: d.Action, EditedArgs: json.RawMessage(d.EditedArgs), Feedback: d.Feedback, By: sender(c)}
}

func (p *Platform) decide(ctx context.Context, c *edge.Caller, a id.ApprovalID, order msg.Decide) (*api.Decided, error) {
	d, err := ask[msg.Decided](ctx, p, c, msg.KindApproval, a.UUID, order)
	if err != nil {
		return nil, err
	}
	return &api.Decided{Status: d.Status, ApprovalsSoFar: d.ApprovalsSoFar}, nil
}

// managed returns the approvals that the caller may decide as the manager of an org node.
func (p *Platform) managed(ctx context.Context, c *edge.Caller, approvals []id.ApprovalID) ([]id.ApprovalID, error) {
	who, err := p.approver(ctx, c)
	if err != nil || len(who.Nodes) == 0 {
		return nil, err
	}
	return p.Store.View(c.Tenant).ApprovalsOf(ctx, who.Nodes, approvals)
}

// bulkAtOnce is how many approvals of one request are decided concurrently.
const bulkAtOnce = 32

func (p *Platform) decideApprovals(ctx context.Context, c *edge.Caller, in *decideApprovals) (*api.BulkDecided, error) {
	ids := in.Body.IDs
	managed, err := p.managed(ctx, c, ids)
	if err != nil {
		return nil, err
	}
	out := &api.BulkDecided{Results: make([]api.BulkResult, len(ids))}
	first := make(map[id.ApprovalID]int, len(ids))
	places := make(chan struct{}, bulkAtOnce)
	var wg sync.WaitGroup
	for i, a := range ids {
		if _, again := first[a]; again {
			continue
		}
		first[a] = i
		order := p.order(c, &api.Decision{Action: in.Body.Action, Feedback: in.Body.Feedback})
		order.Manages = slices.Contains(managed, a)
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			out.Results[i] = p.decideOne(ctx, c, a, order)
		})
	}
	wg.Wait()
	settled := true
	for i, a := range ids {
		out.Results[i] = out.Results[first[a]]
		if e := out.Results[i].Error; e != nil && problem.Lookup(e.Code).Status >= 500 {
			settled = false
		}
	}
	if c.Idem == nil || !settled { // a client that repeats the request gets a better answer for the rest
		return out, nil
	}
	return change(ctx, p, c, func(context.Context, *store.Tx) (*api.BulkDecided, error) { return out, nil })
}

// decideOne decides one approval of several. Under an Idempotency-Key each entry has its own
// kept response: a repeat finds the decisions made even if the first request never completed.
func (p *Platform) decideOne(ctx context.Context, c *edge.Caller, a id.ApprovalID, order msg.Decide) api.BulkResult {
	var key [32]byte
	if c.Idem != nil {
		k := c.Idem.IdemKey
		k.Path += "/" + a.String()
		key = digest(k)
		order.Idempotency = &msg.Idempotency{Digest: key, Fingerprint: c.Idem.Fingerprint, Status: c.Idem.Status}
	}
	d, err := p.decide(ctx, c, a, order)
	if c.Idem != nil && (refused(err) || errors.Is(err, edge.ErrReplay)) {
		switch kept, failed := p.Store.Kept(ctx, c.Tenant, key); {
		case failed != nil:
			err = failed
		case kept != nil && c.Idem.Matches(kept.Fingerprint):
			d = new(api.Decided)
			err = json.Unmarshal(kept.Body, d)
		case kept != nil:
			err = problem.New(problem.CodeIdempotencyConflict, "This Idempotency-Key was used with another request.")
		}
	}
	r := api.BulkResult{ID: a, OK: err == nil}
	switch {
	case err != nil:
		r.Error = bulkError(err)
	case d.Status.Terminal():
		r.Terminal = d.Status
	}
	return r
}

// refused reports whether err is the client's fault. The entry's own first request may be its
// cause: the approval was decided then, and may have moved to a higher role since.
func refused(err error) bool {
	var known *problem.Error
	return errors.As(err, &known) && known.Status() < http.StatusInternalServerError
}

// bulkError returns err as the entry shows it. Internal errors were logged where the approval
// lives.
func bulkError(err error) *api.BulkError {
	var known *problem.Error
	if !errors.As(err, &known) {
		if known = Classify(err); known == nil {
			known = problem.New(problem.CodeInternal, "")
		}
	}
	return &api.BulkError{Code: known.Code, Detail: known.Detail}
}
