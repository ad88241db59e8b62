package toolbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/jsontext"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/pause"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/redact"
	"agentsvc/schemas/skill"
	"agentsvc/schemas/tool"
)

// Calls of browser skills. A call makes a run of its own (actors/skillrun), whose id is part of the
// plan: a call that is carried out again after a crash finds its run. The run drives the browser;
// the call only waits for it. If the call ends before, the run of the agent or workflow tells the
// run of the skill so.
//
//	not gated:   Call ── StartSkill ── waits ──► outcome
//	gated:       Preview ── StartSkill ── waits ──► prepared ┄ people decide ┄► Call ── CommitSkill ── waits ──► outcome
//	                              └──► ended: the outcome, and no approval opens

// Skills is what calls of browser skills need.
type Skills struct {
	Rows SkillRows
	// Ask asks the actor of a run.
	Ask func(ctx context.Context, t id.TenantID, r id.SkillRunID, message any) (any, error)
	// Available returns nil if this node has a browser.
	Available func() error

	mu    sync.Mutex // guards the field below
	waits map[id.SkillRunID][]chan struct{}
}

// SkillRows reads runs of browser skills (store.SkillRuns).
type SkillRows interface {
	Run(ctx context.Context, t id.TenantID, r id.SkillRunID) (*store.SkillRun, error)
	// Holder returns the run that holds an idempotency key; nil if none does.
	Holder(ctx context.Context, t id.TenantID, key string) (*id.SkillRunID, error)
	Skill(ctx context.Context, t id.TenantID, s id.SkillID) (*store.Skill, error)
}

const (
	// firstLook is the pause before a call looks again at a run that another node drives; mostLook
	// bounds it. It grows by a quarter: the end of a run is seen when at most a quarter of its time
	// has passed since, and calls that wait for long cost the database little.
	firstLook = 500 * time.Millisecond
	mostLook  = 10 * time.Second
	askSkill  = 10 * time.Second

	errNoBrowser = string(problem.CodeBrowserSkillUnavailable)
)

// Changed wakes the calls on this node that wait for a run. It does not block.
func (s *Skills) Changed(r id.SkillRunID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, wake := range s.waits[r] {
		close(wake)
	}
	delete(s.waits, r)
}

// change returns a channel that is closed with the next change of a run, and a function that gives
// up waiting for it.
func (s *Skills) change(r id.SkillRunID) (<-chan struct{}, func()) {
	wake := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waits == nil {
		s.waits = map[id.SkillRunID][]chan struct{}{}
	}
	s.waits[r] = append(s.waits[r], wake)
	return wake, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		left := s.waits[r][:0]
		for _, w := range s.waits[r] {
			if w != wake {
				left = append(left, w)
			}
		}
		if s.waits[r] = left; len(left) == 0 {
			delete(s.waits, r)
		}
	}
}

// planSkill returns the run that a call of a skill makes.
func planSkill(t tool.Caller, o *tool.Offer, args json.RawMessage) *tool.SkillCall {
	c := &tool.SkillCall{Run: id.SkillRunID{UUID: id.New(t.Run.Shard())}}
	if o.Name == string(skill.OpRun) {
		c.Previews = o.Terms != nil
		var said struct {
			Reason string `json:"reason"`
		}
		_ = json.Unmarshal(args, &said) // they were checked
		c.Reason = said.Reason
	}
	return c
}

// joinSkills makes calls of one turn with the same values of the same skill one run, whose result
// all of them get.
func joinSkills(plan []tool.Planned) {
	first := map[string]id.SkillRunID{}
	for i := range plan {
		p := &plan[i]
		if p.Skill == nil || p.Refused != nil {
			continue
		}
		key := p.SkillKey()
		if run, ok := first[key]; ok {
			*p = p.Joined(run)
			continue
		}
		first[key] = p.Skill.Run
	}
}

// Preview implements run.Tools and workflow.Tools.
func (b *Toolbox) Preview(ctx context.Context, t tool.Caller, _ int, p tool.Planned) *tool.Outcome {
	for tries := 1; ; tries++ {
		run, key, failed := b.startSkill(ctx, t, p)
		if failed != nil {
			// An earlier attempt may have begun it, before the skill was disabled, for example. The end of the
			// call ends it too; this way its record says why.
			if b.Skills != nil && ctx.Err() == nil { // else it is the next node's
				_, _ = b.askSkill(ctx, t.Tenant, p.Skill.Run, msg.WithdrawSkill{Why: "The call may not go on. Nothing was committed."})
			}
			return failed
		}
		duplicate := run != p.Skill.Run
		row, failed := b.awaitSkill(ctx, t, run, func(r *store.SkillRun) bool { return r.FinishedAt != nil || !duplicate && r.Status == skill.Prepared })
		switch {
		case failed != nil:
			return failed
		case row.FinishedAt == nil:
			return nil
		case duplicate && !row.Holds(key): // an earlier call that was refused, for example, or edited: the key is free
			if tries < keyTries {
				continue
			}
			return unbegun()
		}
		if why := unperformed(row); why != "" {
			out := tool.FailedResult(errNoBrowser, why+" Nothing was run.")
			return &out
		}
		out := b.toldOf(ctx, t, run, row, p.Tool, duplicate)
		return &out
	}
}

// keyTries bounds how often a call tries to begin its run: a key that is taken is free again when its
// run committed nothing.
const keyTries = 3

// toldOf returns what the model hears of a run that has ended. A run that answers another call too is
// told so, for people: it is tried once.
func (b *Toolbox) toldOf(ctx context.Context, t tool.Caller, run id.SkillRunID, row *store.SkillRun, name string, duplicate bool) tool.Outcome {
	if duplicate {
		bounded, cancel := context.WithTimeout(ctx, askSkill)
		defer cancel()
		if _, err := b.Skills.Ask(bounded, t.Tenant, run, msg.RepeatSkill{}); err != nil && ctx.Err() == nil {
			b.Log.Warn().Err(err).Stringer("tenant", t.Tenant).Stringer("skill_run", run).Msg("a run of a browser skill does not show that it answered another call")
		}
	}
	return skillOutcome(run, row, name, duplicate)
}

// callSkill carries out a call of a browser skill.
func (b *Toolbox) callSkill(ctx context.Context, t tool.Caller, p tool.Planned) tool.Outcome {
	run, key := p.Skill.Run, ""
	switch {
	case p.Skill.Joins:
		var failed *tool.Outcome
		if run, failed = b.joinedSkill(ctx, t, p); failed != nil {
			return *failed
		}
	case p.Skill.Previews:
		if failed := b.commitSkill(ctx, t, p); failed != nil {
			return *failed
		}
	default:
		var failed *tool.Outcome
		if run, key, failed = b.startSkill(ctx, t, p); failed != nil {
			return *failed
		}
	}
	row, failed := b.awaitSkill(ctx, t, run, func(r *store.SkillRun) bool { return r.FinishedAt != nil })
	switch {
	case failed == nil:
	case strings.HasSuffix(p.Tool, "."+string(skill.OpDryRun)):
		return *failed
	default: // it was begun, and may have committed
		return failed.After()
	}
	if why := unperformed(row); why != "" {
		return tool.FailedResult(errNoBrowser, why+" Nothing was run.")
	}
	duplicate := p.Skill.Joins || run != p.Skill.Run
	switch {
	case p.Skill.Previews && row.Status == skill.Failed && row.Code == nil: // perhaps because another run holds the key
		if other, of := b.instead(ctx, t, p, row); of != nil {
			run, row, duplicate = other, of, true
		}
	case !p.Skill.Joins && duplicate && row.Held && !row.Holds(key):
		return *unbegun()
	}
	return b.toldOf(ctx, t, run, row, p.Tool, duplicate)
}

// instead returns the run that committed the values with which an approver replaced those of a call, whose own run has
// ended for it; nil if there is none.
func (b *Toolbox) instead(ctx context.Context, t tool.Caller, p tool.Planned, own *store.SkillRun) (run id.SkillRunID, row *store.SkillRun) {
	of, err := again(ctx, func() (*store.Skill, error) { return b.Skills.Rows.Skill(ctx, t.Tenant, own.Skill) })
	if err != nil || of == nil {
		return run, nil
	}
	bound, faults, err := of.Definition.Bind(ctx, skill.ForEdit, p.Args)
	if err != nil || len(faults) > 0 {
		return run, nil
	}
	key := skill.Key(t.Tenant, t.Run, own.Slug, skill.OpRun, bound.Values)
	holder, failed := b.holder(ctx, &t, key)
	if failed != nil || holder == nil {
		return run, nil
	}
	row, failed = b.awaitSkill(ctx, t, *holder, hasEnded)
	if failed != nil || !row.Holds(key) { // it committed nothing
		return run, nil
	}
	return *holder, row
}

func unbegun() *tool.Outcome {
	return unsent(tool.ErrToolFailed, "The call could not be begun. Nothing was run.")
}

const noBrowserText = "This deployment has no browser. Nothing was run."

// unperformed says why a run got no browser on its node, which may be another than this one: one without
// its sandbox, for example, or elsewhere and refusing, which shows only when it is used, or one for which too
// many wait. The run committed nothing. Empty: it got one.
func unperformed(r *store.SkillRun) string {
	var f skill.Fault
	if r.Status == skill.Failed && json.Unmarshal(r.Fault, &f) == nil && f.NoBrowser {
		return f.Message
	}
	return ""
}

// unsent is the outcome of an attempt that began and committed nothing.
func unsent(code, message string) *tool.Outcome {
	out := tool.UnsentResult(code, message)
	return &out
}

func notGranted(t *tool.Caller, name string) *tool.Outcome {
	return unsent(tool.ErrNotGranted, fmt.Sprintf("The tool %q is not granted to this %s any more. Nothing was run.", name, t.What()))
}

// unread is the outcome of a call for which storage could not be read.
func (b *Toolbox) unread(ctx context.Context, t *tool.Caller, err error) *tool.Outcome {
	if ctx.Err() == nil {
		b.Log.Error().Err(err).Stringer("tenant", t.Tenant).Stringer("run", t.Run).Msg("a call of a browser skill cannot be prepared")
	}
	return unsent(tool.ErrToolFailed, "The call could not be prepared. Nothing was run.")
}

// offered returns what decides on the tool of a planned call now; nil if the caller may not call it
// any more.
func (b *Toolbox) offered(ctx context.Context, t *tool.Caller, name string) (*view, *tool.Offer, error) {
	v, err := again(ctx, func() (*view, error) { return b.lookFor(ctx, t, []string{ownerOf(name)}) })
	if err != nil {
		return nil, nil, err
	}
	o, ok := tool.Exact(tool.Offers(v.access, t.Manifest, t.Options, v.specs), name)
	if !ok {
		return nil, nil, nil
	}
	return v, o, nil
}

// bindSkill returns the message that begins the run of a call, under its key, as the skill is now.
func (b *Toolbox) bindSkill(ctx context.Context, t *tool.Caller, p *tool.Planned) (start msg.StartSkill, out *tool.Outcome) {
	v, o, err := b.offered(ctx, t, p.Tool)
	switch {
	case err != nil:
		return start, b.unread(ctx, t, err)
	case o == nil:
		return start, notGranted(t, p.Tool)
	}
	s := v.skills[o.Owner]
	m, form := skill.Run, skill.ForRun
	if o.Name == string(skill.OpDryRun) {
		m, form = skill.DryRun, skill.ForDryRun
	}
	bound, faults, err := s.Definition.Bind(ctx, form, p.Args)
	switch {
	case err != nil:
		return start, b.unread(ctx, t, err)
	case len(faults) > 0:
		return start, unsent(tool.ErrInvalidArgs, skill.InvalidArgs(faults).Detail)
	}
	start = msg.StartSkill{
		Run: p.Skill.Run, Skill: s.ID, Slug: s.Slug, Taught: s.Revision, Plan: skill.PlanOf(m, s.Definition, s.Policy, p.Terms != nil),
		Key: skill.Key(t.Tenant, t.Run, s.Slug, skill.Op(o.Name), bound.Values), Values: bound.Values.JSON(), Reason: bound.Reason,
		AgentRun: &t.Run, By: msg.By{Actor: msg.System},
	}
	if t.Workflow == nil {
		start.Agent = &t.Agent
	}
	return start, nil
}

// holder returns the run that holds a key; nil if none does.
func (b *Toolbox) holder(ctx context.Context, t *tool.Caller, key string) (*id.SkillRunID, *tool.Outcome) {
	run, err := again(ctx, func() (*id.SkillRunID, error) { return b.Skills.Rows.Holder(ctx, t.Tenant, key) })
	if err != nil {
		return nil, b.unread(ctx, t, err)
	}
	return run, nil
}

// joinedSkill returns the run whose result a call gets that repeats an earlier one of its turn: the run
// that was planned for that one, or if that one began none, the run that holds the key.
func (b *Toolbox) joinedSkill(ctx context.Context, t tool.Caller, p tool.Planned) (run id.SkillRunID, out *tool.Outcome) {
	run = p.Skill.Run
	if b.Skills == nil {
		return run, unsent(errNoBrowser, noBrowserText)
	}
	row, err := again(ctx, func() (*store.SkillRun, error) { return b.Skills.Rows.Run(ctx, t.Tenant, run) })
	switch {
	case err != nil:
		return run, b.unread(ctx, &t, err)
	case row != nil:
		return run, nil
	}
	start, out := b.bindSkill(ctx, &t, &p)
	if out != nil {
		return run, out
	}
	holder, out := b.holder(ctx, &t, start.Key)
	switch {
	case out != nil:
		return run, out
	case holder != nil:
		return *holder, nil
	case b.Skills.Available() != nil:
		return run, unsent(errNoBrowser, noBrowserText)
	}
	return run, unsent(tool.ErrToolFailed, "The call that this one repeats was not begun. Nothing was run.")
}

// startSkill begins the run of a call, or finds another one that holds its key.
func (b *Toolbox) startSkill(ctx context.Context, t tool.Caller, p tool.Planned) (run id.SkillRunID, key string, out *tool.Outcome) {
	run = p.Skill.Run
	if b.Skills == nil {
		return run, "", unsent(errNoBrowser, noBrowserText)
	}
	start, out := b.bindSkill(ctx, &t, &p)
	if out != nil {
		return run, "", out
	}
	if p.Skill.Previews {
		start.Approval = p.Approval
	} else if start.Plan.Gate != skill.GateNone { // a policy asks for an approval since the call was planned
		return run, "", unsent(tool.ErrToolFailed, "The skill needs an approval now. Call it again.")
	}
	for range keyTries {
		holder, out := b.holder(ctx, &t, start.Key)
		switch {
		case out != nil:
			return run, "", out
		case holder != nil:
			return *holder, start.Key, nil
		}
		if b.Skills.Available() != nil {
			return run, "", unsent(errNoBrowser, noBrowserText)
		}
		_, err := b.askSkill(ctx, t.Tenant, start.Run, start)
		switch {
		case err == nil:
			return run, start.Key, nil
		case !errors.Is(err, problem.New(problem.CodeInUse, "")):
			return run, "", b.unread(ctx, &t, err)
		}
	}
	return run, "", unbegun()
}

// commitSkill makes the run of an approved call go on. A run that may not is ended.
func (b *Toolbox) commitSkill(ctx context.Context, t tool.Caller, p tool.Planned) *tool.Outcome {
	if b.Skills == nil || p.Approval == nil {
		return unsent(errNoBrowser, noBrowserText)
	}
	_, o, err := b.offered(ctx, &t, p.Tool)
	if err != nil {
		return b.unread(ctx, &t, err)
	}
	if o == nil {
		row, err := again(ctx, func() (*store.SkillRun, error) { return b.Skills.Rows.Run(ctx, t.Tenant, p.Skill.Run) })
		if err == nil && row != nil && row.FinishedAt != nil || row != nil && row.Status != skill.Prepared {
			return nil // it was begun before the grant went: what became of it counts
		}
		out := notGranted(&t, p.Tool)
		_, err = b.askSkill(ctx, t.Tenant, p.Skill.Run, msg.WithdrawSkill{Why: "The skill is not granted to this " + t.What() + " any more. Nothing was committed."})
		out.Unsent = err != nil // else no earlier attempt committed anything either
		return out
	}
	_, err = b.askSkill(ctx, t.Tenant, p.Skill.Run, msg.CommitSkill{Approval: *p.Approval, Args: p.Args})
	var refused *problem.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, problem.NotFound("")): // also of an approval that an earlier build asked for
		return unsent(tool.ErrToolFailed, "The form was never filled, or the browser skill was deleted since. Nothing was committed.")
	case errors.As(err, &refused) && refused.Code == problem.CodeInvalidArgs:
		_, _ = b.askSkill(ctx, t.Tenant, p.Skill.Run, msg.WithdrawSkill{Why: "The arguments are not those that were approved. Nothing was committed."})
		out := tool.FailedResult(tool.ErrInvalidArgs, refused.Detail+" Nothing was run.") // the run still waited
		return &out
	}
	return b.unread(ctx, &t, err)
}

func skillGone() *tool.Outcome {
	return unsent(tool.ErrToolFailed, "The browser skill was deleted. Nothing was committed.")
}

// askSkill asks a run, and again while storage cannot serve: all messages are repeatable.
func (b *Toolbox) askSkill(ctx context.Context, t id.TenantID, r id.SkillRunID, m any) (msg.SkillStands, error) {
	for wait := firstPause; ; wait = min(2*wait, lastPause) {
		bounded, cancel := context.WithTimeout(ctx, askSkill)
		v, err := b.Skills.Ask(bounded, t, r, m)
		cancel()
		if err == nil {
			stands, _ := v.(msg.SkillStands)
			return stands, nil
		}
		var seen *problem.Error
		if errors.As(err, &seen) && seen.Code != problem.CodeUnavailable || !pause.For(ctx, wait) {
			return msg.SkillStands{}, err
		}
	}
}

// errGone is returned for a run whose row is gone: its skill was deleted.
var errGone = errors.New("the run of the browser skill is gone")

// awaitSkill waits for a run as awaitRow does, and returns what the model hears if it cannot.
func (b *Toolbox) awaitSkill(ctx context.Context, t tool.Caller, r id.SkillRunID, done func(*store.SkillRun) bool) (*store.SkillRun, *tool.Outcome) {
	row, err := b.awaitRow(ctx, t.Tenant, r, done)
	switch {
	case err == nil:
		return row, nil
	case errors.Is(err, errGone):
		return nil, skillGone()
	case ctx.Err() != nil:
		out := tool.FailedResult(tool.ErrToolTimeout, "The skill did not end in time.")
		return nil, &out
	}
	return nil, b.unread(ctx, &t, err)
}

// awaitRow waits until a run is as done says. It holds nothing while it waits, and goes on after a
// change that it misses. The error is errGone, that of ctx, or that of the storage.
func (b *Toolbox) awaitRow(ctx context.Context, t id.TenantID, r id.SkillRunID, done func(*store.SkillRun) bool) (*store.SkillRun, error) {
	for look := firstLook; ; {
		changed, forget := b.Skills.change(r)
		row, err := again(ctx, func() (*store.SkillRun, error) { return b.Skills.Rows.Run(ctx, t, r) })
		switch {
		case err != nil:
			forget()
			return nil, err
		case row == nil:
			forget()
			return nil, errGone
		case done(row):
			forget()
			return row, nil
		}
		timer := time.NewTimer(look)
		select {
		case <-changed:
			look = firstLook
		case <-timer.C:
			look = min(look+look/4, mostLook)
		case <-ctx.Done():
		}
		timer.Stop()
		forget()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// SkillGranted implements skillrun.Grants: it reports whether the agent or the workflow may call an
// operation of a skill now, as grants, org nodes and the skill's policy say. What an agent's manifest
// names is fixed with its run.
func (b *Toolbox) SkillGranted(ctx context.Context, by tool.Caller, of *store.Skill, op skill.Op) (bool, error) {
	read := b.Tables.View(by.Tenant)
	if by.Workflow != nil {
		access, err := read.WorkflowAccess(ctx, *by.Workflow)
		return of.Granted(access, op), err
	}
	access, err := read.Access(ctx, by.Agent)
	return of.Granted(access, op), err
}

// CheckSkillEdit implements approval.Skills. Whether edits are allowed was decided when the run
// began; what the values must be is the skill's definition of now.
func (b *Toolbox) CheckSkillEdit(ctx context.Context, t id.TenantID, r id.SkillRunID, args json.RawMessage) (string, error) {
	if b.Skills == nil {
		return "This deployment has no browser skills.", nil
	}
	row, err := b.Skills.Rows.Run(ctx, t, r)
	if err != nil {
		return "", err
	}
	const gone = "The browser skill was deleted: decide with reject or respond."
	if row == nil {
		return gone, nil
	}
	var kept struct { // of actors/skillrun
		Stand skill.State `json:"stand"`
	}
	if err := json.Unmarshal(row.State, &kept); err != nil {
		return "", fmt.Errorf("read the state of a skill run: %w", err)
	}
	s, err := b.Skills.Rows.Skill(ctx, t, row.Skill)
	switch {
	case err != nil:
		return "", err
	case s == nil:
		return gone, nil
	}
	edits := kept.Stand.Plan.Edits
	if edits == "" {
		edits = s.Policy.Edits()
	}
	if edits != skill.EditsAllowed {
		return "The policy of this browser skill does not allow edits: decide with approve, reject or respond.", nil
	}
	_, faults, err := s.Definition.Bind(ctx, skill.ForEdit, args)
	if err != nil || len(faults) == 0 {
		return "", err
	}
	return skill.InvalidArgs(faults).Detail, nil
}

// told is what the model hears of a run (service.md, Browser skill run outcomes). Of the page's own
// text it holds result fields, and the values that bound fields hold; titles, notes, and what a
// failed check found instead are for people.
type told struct {
	OK           *bool             `json:"ok,omitempty"`
	Rejected     bool              `json:"rejected,omitempty"`
	Error        string            `json:"error,omitempty"`
	Message      string            `json:"message,omitempty"`
	RunID        id.SkillRunID     `json:"run_id"`
	Status       skill.Status      `json:"status,omitempty"`
	Committed    *bool             `json:"committed,omitempty"`
	Step         string            `json:"step_id,omitempty"`
	Selectors    []string          `json:"selectors,omitempty"`
	Field        string            `json:"field,omitempty"`
	URL          string            `json:"url,omitempty"`
	Values       map[string]string `json:"values,omitempty"`
	Screenshot   string            `json:"screenshot_key,omitempty"`
	Verification []toldCheck       `json:"verification,omitzero"`
	Compensation *toldCompensation `json:"compensation,omitempty"`
	Result       json.RawMessage   `json:"result,omitempty"`
	Steps        []toldStep        `json:"steps,omitempty"`
	Cite         string            `json:"cite,omitempty"`
	Duplicate    bool              `json:"duplicate,omitempty"`
	Feedback     *string           `json:"feedback,omitempty"`
}

type (
	toldCheck struct {
		Kind     skill.CheckKind `json:"kind"`
		OK       bool            `json:"ok"`
		Expected string          `json:"expected"`
	}
	toldStep struct {
		ID     string           `json:"id"`
		Kind   skill.Kind       `json:"kind"`
		Status skill.StepStatus `json:"status"`
	}
	toldCompensation struct {
		Ran bool `json:"ran"`
	}
)

// skillOutcome returns what the model hears of a run that has ended.
func skillOutcome(run id.SkillRunID, r *store.SkillRun, name string, duplicate bool) tool.Outcome {
	var (
		steps   []skill.StepResult
		checks  []skill.CheckResult
		page    *skill.Page
		undone  *toldCompensation
		fault   skill.Fault
		damaged error
	)
	for _, c := range []struct {
		doc []byte
		to  any
	}{{r.Steps, &steps}, {r.Verification, &checks}, {r.Precommit, &page}, {r.Compensation, &undone}, {r.Fault, &fault}} {
		if len(c.doc) > 0 {
			damaged = errors.Join(damaged, json.Unmarshal(c.doc, c.to))
		}
	}
	if damaged != nil {
		return tool.FailedResult(tool.ErrToolFailed, "The record of the run cannot be read.")
	}
	owner, op, _ := strings.Cut(name, ".")
	slug := strings.TrimPrefix(owner, skillPrefix)
	committed := r.Held && r.Status != skill.StatusCommitting // it holds its key since the receipt
	var kept struct {                                         // of actors/skillrun
		Stand skill.State `json:"stand"`
	}
	left := r.Status == skill.OutOfScope
	if left && json.Unmarshal(r.State, &kept) != nil {
		kept.Stand = skill.State{}
	}
	t := told{RunID: run, Duplicate: duplicate}
	for _, c := range checks {
		t.Verification = append(t.Verification, toldCheck{c.Kind, c.OK, c.Expected})
	}
	var code skill.Code
	if r.Code != nil {
		code = *r.Code
	}
	isError := true
	switch {
	case r.Status == skill.Succeeded:
		ok := true
		t.OK, t.Status, t.Committed, isError = &ok, r.Status, &committed, false
		t.Result, t.Cite = r.Result, skill.Cite(slug, run.String())
		for _, s := range steps {
			t.Steps = append(t.Steps, toldStep{s.ID, s.Kind, s.Status})
		}
		switch {
		case op != string(skill.OpDryRun): // these are there, also where nothing was checked or read
			if t.Verification == nil {
				t.Verification = []toldCheck{}
			}
			if len(t.Result) == 0 {
				t.Result = json.RawMessage("null")
			}
		case page != nil:
			t.Values, t.Screenshot = page.Values, page.Shot
		}
	case r.Status == skill.Rejected:
		none := ""
		t.Rejected, t.Feedback = true, &none
	case code == "": // the skill is not there for the agent any more
		t.Error, t.Message = tool.ErrToolFailed, fault.Message
	default:
		t.Error, t.Message, t.Status = string(code), fault.Message, r.Status
		t.Step, t.Selectors, t.Field, t.URL = fault.StepID, fault.Selectors, fault.Field, fault.URL
		if left {
			t.URL = originOf(fault.URL) // the rest is a text that the page chose
		} else if code == skill.CodePrecommitMismatch {
			t.URL = pageOf(fault.URL)
		}
		if code != skill.CodeUnknownOutcome && !(left && committed && !kept.Stand.Answered) { // it left by the click, or before
			t.Committed = &committed
		}
		if code == skill.CodeVerificationFailed {
			t.Screenshot = lastShot(steps)
			if t.Compensation = undone; undone == nil {
				t.Compensation = &toldCompensation{}
			}
		}
		if t.Message == "" {
			t.Message = "The run of the browser skill did not land."
		}
	}
	return skillResult(t, isError)
}

var origin = regexp.MustCompile(`^(https?://)(?:[^/?#]*@)?([a-z0-9.:\[\]-]{1,260})(?:[/?#]|$)`)

// originOf returns scheme and host of a web address, "" if it is none.
func originOf(address string) string {
	m := origin.FindStringSubmatch(address)
	if m == nil {
		return ""
	}
	return m[1] + m[2]
}

// maxTold bounds the path of a page's address that a model gets, in bytes: a page can give itself any.
const maxTold = 200

// pageOf returns a web address up to its path, without user info, "" if it is none.
func pageOf(address string) string {
	at := originOf(address)
	if at == "" {
		return ""
	}
	_, path, _ := strings.Cut(address, "//")
	if end := strings.IndexAny(path, "?#"); end >= 0 {
		path = path[:end]
	}
	_, path, there := strings.Cut(path, "/")
	if !there {
		return at
	}
	return at + problem.CutBytes("/"+path, maxTold)
}

func lastShot(steps []skill.StepResult) (key string) {
	for _, s := range steps {
		if s.Shot != "" {
			key = s.Shot
		}
	}
	return key
}

func skillResult(t told, isError bool) tool.Outcome {
	text := jsontext.Must(t) // texts, and JSON that the database has checked
	return tool.Outcome{Content: string(text), Shown: redact.JSON(text), IsError: isError}
}
