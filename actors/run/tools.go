package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"agentsvc/persistence/failpoint"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/tool"
)

// Tools offers tools to models and carries calls out. A run does not use it while its
// manifest names neither tools nor handoffs.
type Tools interface {
	// Offer lists the tools that the agent may call now, by qualified name; the tool
	// handoff is among them if the manifest names handoffs. The error is the
	// storage's.
	Offer(ctx context.Context, t tool.Caller) ([]model.ToolSpec, error)
	// Plan resolves each call: refused, gated or to be called. calls[i] will be step
	// first+i, from which its idempotency_key is derived. Nothing is called. The id of an
	// approval is minted here, in the run's shard. The error is the storage's.
	Plan(ctx context.Context, t tool.Caller, first int, calls []model.Call) ([]tool.Planned, error)
	// Call carries out the planned call of step idx: it reads the grants again, and opens
	// the credential for this call only. It always answers; the answer is dropped only if
	// ctx has ended. Handoffs are not called.
	Call(ctx context.Context, t tool.Caller, idx int, p tool.Planned) tool.Outcome
	// Preview does the part of a planned call of a browser skill that comes before its approval.
	// It returns nil when the approval can open, else the outcome of the call. It may be called
	// again after a crash. The answer is dropped only if ctx has ended.
	Preview(ctx context.Context, t tool.Caller, idx int, p tool.Planned) *tool.Outcome
}

// Effects of calls.
type (
	// ToolCall carries out one call, until the run's time is up.
	ToolCall struct {
		Call  *Call
		Until time.Time
		Of    *State // as committed
	}
	// HandOff looks up the agent that takes over the conversation.
	HandOff struct {
		Call  *Call
		Until time.Time
		Of    *State
	}
)

// Preview does what comes before the approval of a call, until the run's time is up.
type Preview struct {
	Call  *Call
	Until time.Time
	Of    *State // as committed
}

// Key is stable over re-performance.
func (e Preview) Key() string { return previewKey(e.Call.Idx) }

func previewKey(idx int) string { return "preview/" + strconv.Itoa(idx) }

// Key is stable over re-performance: a call that is sent again has the same key.
func (e ToolCall) Key() string { return e.Call.key() }

// Key is stable over re-performance.
func (e HandOff) Key() string { return e.Call.key() }

// Crash points of a gated call: its approval is open; it was decided and its receipt is
// committed; it is about to be sent; it was answered and the answer is not committed; its
// result is about to be committed.
var (
	pointOpened       = failpoint.Declare("run.tool_opened")
	pointResumed      = failpoint.Declare("run.tool_resumed")
	pointBeforeCall   = failpoint.Declare("run.tool_before_call")
	pointAfterCall    = failpoint.Declare("run.tool_after_call")
	pointBeforeResult = failpoint.Declare("run.tool_before_result")
)

// hasTools reports whether the speaking agent may have any tools.
func (k *kind) hasTools(s *State) bool {
	if k.cfg.Tools == nil {
		return false
	}
	m := s.Agent.Manifest
	return len(m.Tools.MCP)+len(m.Tools.Builtin)+len(m.Tools.BrowserSkills)+len(m.Handoffs) > 0
}

// callerOf returns the agent that speaks in s, as the caller of tools.
func callerOf(s *State) tool.Caller {
	speaker, _ := s.speaker()
	return tool.Caller{Tenant: s.Tenant, Run: s.ID, Agent: *speaker, Manifest: s.Agent.Manifest, Options: options(s.Input), EndUser: s.EndUserID}
}

// plan plans the calls. unplanned says why there is no plan; else it is empty.
func (k *kind) plan(ctx context.Context, s *State, calls []model.Call) (plan []tool.Planned, unplanned lifecycle.Failure) {
	err := retry(ctx, func() (err error) {
		plan, err = k.cfg.Tools.Plan(ctx, callerOf(s), s.Steps, calls)
		return err
	})
	if err == nil && !complete(plan, calls) {
		err = errPlan
	}
	switch {
	case err == nil:
		return plan, ""
	case ctx.Err() != nil:
		return nil, lifecycle.FailLimitExceeded
	}
	k.log(k.cfg.Log.Error(), s).Err(err).Msg("calls could not be planned")
	return nil, lifecycle.FailInternal
}

var toolsGone = tool.UnsentResult(tool.ErrNotGranted, "This deployment has no tools any more. Nothing was run.")

var errPlan = errors.New("run: the plan does not fit the calls")

// complete reports whether a plan has an entry for each call that the machine can use.
func complete(plan []tool.Planned, calls []model.Call) bool {
	return len(plan) == len(calls) && !slices.ContainsFunc(plan, func(p tool.Planned) bool {
		return p.Refused == nil && (p.Terms == nil) != (p.Approval == nil)
	})
}

// call carries out one call. It returns nil if the call is no longer owed.
func (k *kind) call(ctx context.Context, left time.Duration, e ToolCall) any {
	s, c := e.Of, e.Call
	bounded, stop := context.WithTimeout(ctx, left)
	defer stop()
	out := toolsGone
	failpoint.Hit(pointBeforeCall)
	if k.cfg.Tools != nil {
		keeping := tool.Keeping(bounded, func(give func()) { k.answers.keep(ctx, s.ID, c.Idx, give) })
		out = k.cfg.Tools.Call(keeping, callerOf(s), c.Idx, c.Plan)
	}
	if c.Again {
		out = out.After()
	}
	failpoint.Hit(pointAfterCall)
	switch {
	case ctx.Err() != nil:
		return nil
	case bounded.Err() != nil:
		return TimeUp{Idx: c.Idx}
	}
	return ToolAnswered{Idx: c.Idx, Outcome: out}
}

// preview returns nil if the preview is no longer owed.
func (k *kind) preview(ctx context.Context, left time.Duration, e Preview) any {
	bounded, stop := context.WithTimeout(ctx, left)
	defer stop()
	out := &toolsGone
	if k.cfg.Tools != nil {
		out = k.cfg.Tools.Preview(bounded, callerOf(e.Of), e.Call.Idx, e.Call.Plan)
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case bounded.Err() != nil:
		return TimeUp{Idx: e.Call.Idx}
	}
	return Previewed{Idx: e.Call.Idx, Outcome: out}
}

// handOff looks up the agent that takes over: the speaking agent's manifest must name it,
// and it must have a published version.
func (k *kind) handOff(ctx context.Context, left time.Duration, e HandOff) any {
	bounded, stop := context.WithTimeout(ctx, left)
	defer stop()
	m := HandedOver{Idx: e.Call.Idx}
	err := retry(bounded, func() (err error) {
		m, err = k.takesOver(bounded, e)
		return err
	})
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil:
		return m
	case bounded.Err() != nil:
		return TimeUp{Idx: e.Call.Idx}
	}
	k.log(k.cfg.Log.Error(), e.Of).Err(err).Msg("handoff could not be looked up")
	return HandedOver{Idx: e.Call.Idx, Outcome: lostHandoff}
}

func (k *kind) takesOver(ctx context.Context, e HandOff) (HandedOver, error) {
	s, m := e.Of, HandedOver{Idx: e.Call.Idx}
	var args struct {
		To string `json:"to"`
	}
	if json.Unmarshal(e.Call.Plan.Args, &args) != nil || !slices.Contains(s.Agent.Manifest.Handoffs, args.To) {
		m.Outcome = tool.FailedResult(tool.ErrInvalidArgs, "There is no such agent to hand the conversation over to.")
		return m, nil
	}
	m.To = args.To
	var ok bool
	var err error
	if m.AgentID, m.Version, ok, err = k.cfg.Store.Published(ctx, s.Tenant, m.To); err != nil {
		return m, err
	}
	if ok {
		if m.Agent, err = k.agents.ready(ctx, version{s.Tenant, m.AgentID, m.Version}); err != nil {
			return m, err
		}
	}
	if m.Agent == nil {
		m.Outcome = tool.FailedResult(tool.ErrToolFailed, "The agent "+m.To+" cannot take the conversation over: it has no published version.")
		return m, nil
	}
	speaker, _ := s.speaker()
	if m.From, err = k.cfg.Store.Slug(ctx, s.Tenant, *speaker); err != nil {
		return m, fmt.Errorf("hand over: %w", err)
	}
	m.Outcome = tookOver(m.From, m.To)
	return m, nil
}
