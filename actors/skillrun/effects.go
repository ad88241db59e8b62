package skillrun

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/failpoint"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/pause"
	"agentsvc/schemas/skill"
	"agentsvc/schemas/tool"
)

// Browser performs the steps of a skill (transport/browser). Each call opens a fresh session. A
// call returns soon after its ctx has ended, and never panics because of a page. An error is a
// fault of the browser itself, not of the page.
type Browser interface {
	// Available returns nil if this node has a browser.
	Available() error
	// Prepare runs all steps before the commit step and locates its target. The session stays
	// open if the report's event is Landed, and is nil otherwise.
	Prepare(ctx context.Context, j *skill.Job) (Session, *skill.Report, error)
	// Read runs a skill without a commit step, with its checks and result fields.
	Read(ctx context.Context, j *skill.Job) (*skill.Report, error)
	// Compensate runs the compensation steps.
	Compensate(ctx context.Context, j *skill.Job) (*skill.Report, error)
}

// Session is a page just before the commit step.
type Session interface {
	// Commit clicks once. Its event is Clicked, LeftScope, Fails or Lost.
	Commit(ctx context.Context) *skill.Report
	// Verify runs the steps behind the commit, the checks and the result fields.
	Verify(ctx context.Context) *skill.Report
	// Close is idempotent and does not block.
	Close()
}

// Store reads what runs need (store.SkillRuns).
type Store interface {
	// Run returns the row; nil if there is none.
	Run(ctx context.Context, t id.TenantID, r id.SkillRunID) (*store.SkillRun, error)
	// Holder returns the run that holds an idempotency key; nil if none does.
	Holder(ctx context.Context, t id.TenantID, key string) (*id.SkillRunID, error)
	// Skill returns the skill; nil if there is none.
	Skill(ctx context.Context, t id.TenantID, s id.SkillID) (*store.Skill, error)
	// Standing reads how an approval and a run stand.
	Standing(ctx context.Context, t id.TenantID, a *id.ApprovalID, r *id.RunID) (store.SkillStanding, error)
}

// Secrets opens one secret of a skill, just before it is typed, and audits that.
type Secrets interface {
	Open(ctx context.Context, t id.TenantID, s id.SkillID, revision int, r id.SkillRunID, ref string) (string, error)
}

// Files keeps a screenshot and returns its key.
type Files interface {
	Keep(ctx context.Context, t id.TenantID, r id.SkillRunID, step string, jpeg []byte) (key string, err error)
}

// Grants reports whether an agent or a workflow may still call a tool of the skill.
type Grants interface {
	SkillGranted(ctx context.Context, by tool.Caller, of *store.Skill, op skill.Op) (bool, error)
}

// Actors sends messages to actors (cluster.Node).
type Actors interface {
	Ask(ctx context.Context, a cluster.Address, message any) (any, error)
}

// Crash points: the page is ready and the receipt is not written; the receipt is written and
// nothing is clicked; the click was answered, which no row says; the checks begin; they have ended.
var (
	pointPrepared = failpoint.Declare("skillrun.prepared")
	pointReady    = failpoint.Declare("skillrun.ready")
	pointReceipt  = failpoint.Declare("skillrun.before_click")
	pointClicked  = failpoint.Declare("skillrun.clicked")
	pointVerify   = failpoint.Declare("skillrun.before_checks")
	pointVerified = failpoint.Declare("skillrun.checked")
	pointUndone   = failpoint.Declare("skillrun.compensated")
)

const (
	// patience is how long an effect waits for storage before it gives up. Nothing was clicked.
	patience = 30 * time.Second
	// tellTime bounds the wait until the status committed is durable. The checks do not need it.
	tellTime = 3 * time.Second

	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// perform does one part of a run.
func (k *kind) perform(ctx context.Context, a durable.Activation, e durable.Effect) any {
	d := k.desk(a.Address)
	if ctx.Err() != nil { // the activation ended before the desk was made
		return nil
	}
	var out any
	switch e := e.(type) {
	case Prepare:
		out = k.prepare(ctx, e.Of)
	case Reprepare:
		out = k.reprepare(ctx, e.Of, d)
	case Read:
		out = k.readOnly(ctx, e.Of)
	case Commit:
		out = k.click(ctx, a, d)
	case Compensate:
		out = k.compensate(ctx, e.Of)
	default:
		panic(fmt.Sprintf("skillrun: unknown effect %T", e))
	}
	if ctx.Err() != nil {
		return nil
	}
	return out
}

const (
	noBrowser = "This node has no browser."
	busy      = "Too many runs of browser skills wait for the browser of this node. Try again later."
)

// unavailable is the report of a part for which there was no browser, or none that may be used.
func unavailable(why string) *skill.Report {
	return &skill.Report{Event: skill.Fails, Fault: &skill.Fault{Code: skill.CodeStepFailed, Message: why, NoBrowser: true}}
}

// The fillings of a run. Each has screenshots of its own: those that a person has seen stay. No step's
// id has a point.
const (
	firstFilling  = ""
	secondFilling = ".2"
	undoing       = ".3" // the compensation, which signs in once more
)

// job returns the work of a run, or why the skill may not run.
func (k *kind) job(ctx context.Context, s *State, filling string) (j *skill.Job, unfit string, err error) {
	row, unfit, err := k.fit(ctx, s)
	if err != nil || unfit != "" {
		return nil, unfit, err
	}
	return k.bound(ctx, s, row, filling)
}

// bound returns the work of a run of a skill as it is now, or why the run's values do not fit it.
func (k *kind) bound(ctx context.Context, s *State, of *store.Skill, filling string) (j *skill.Job, unfit string, err error) {
	b, faults, err := of.Definition.Bind(ctx, skill.ForEdit, s.Values)
	switch {
	case err != nil:
		return nil, "", err
	case len(faults) > 0:
		return nil, "The values do not fit the skill any more.", nil
	}
	return &skill.Job{
		Tenant: s.Tenant, Skill: s.Skill, Run: s.ID, Definition: of.Definition, Values: b.Values, Residency: of.Residency,
		Open: func(ref string) (string, error) {
			return k.cfg.Secrets.Open(ctx, s.Tenant, s.Skill, s.Taught, s.ID, ref)
		},
		Keep: func(ctx context.Context, step string, jpeg []byte) (string, error) {
			return k.cfg.Files.Keep(ctx, s.Tenant, s.ID, step+filling, jpeg)
		},
	}, "", nil
}

// fit returns the skill, or why it may not run (any more).
func (k *kind) fit(ctx context.Context, s *State) (row *store.Skill, unfit string, err error) {
	granted := true
	var by tool.Caller
	err = retry(ctx, func() (err error) {
		if row, err = k.cfg.Store.Skill(ctx, s.Tenant, s.Skill); err != nil || row == nil || s.AgentRun == nil || k.cfg.Grants == nil {
			return err
		}
		if by, err = k.caller(ctx, s); err == nil {
			granted, err = k.cfg.Grants.SkillGranted(ctx, by, row, opOf(s.Plan.Mode))
		}
		return err
	})
	switch {
	case err != nil:
	case row == nil:
		unfit = "The skill was deleted. Nothing was committed."
	case row.Revision != s.Taught:
		unfit = "The skill was taught anew. Nothing was committed."
	case s.AgentRun != nil && !row.Enabled: // a person may try a disabled skill
		unfit = "The skill is disabled. Nothing was committed."
	case !granted:
		unfit = "The skill is not granted to this " + by.What() + " any more. Nothing was committed."
	}
	return row, unfit, err
}

// caller returns the agent or the workflow of the run that called the tool. The row of that run says
// which workflow it is of.
func (k *kind) caller(ctx context.Context, s *State) (tool.Caller, error) {
	by := tool.Caller{Tenant: s.Tenant, Run: *s.AgentRun}
	if s.Agent != nil {
		by.Agent = *s.Agent
		return by, nil
	}
	at, err := k.cfg.Store.Standing(ctx, s.Tenant, nil, s.AgentRun)
	by.Workflow = at.Workflow
	return by, err
}

func opOf(m skill.Mode) skill.Op {
	if m == skill.DryRun {
		return skill.OpDryRun
	}
	return skill.OpRun
}

// retry repeats a read while storage is unavailable, for a bounded time.
func retry(ctx context.Context, read func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for wait := firstPause; ; wait = min(2*wait, lastPause) {
		err := read()
		if err == nil || ctx.Err() != nil || !errors.Is(err, store.ErrUnavailable) {
			return err
		}
		if !pause.For(ctx, wait) {
			return err
		}
	}
}

// part runs one part in a place of the node. A nil report stands for a browser that was lost.
func (k *kind) part(ctx context.Context, s *State, filling string, do func(*skill.Job) (*skill.Report, error)) (r *skill.Report, unfit string) {
	if k.cfg.Browser.Available() != nil {
		return unavailable(noBrowser), ""
	}
	j, unfit, err := k.job(ctx, s, filling)
	if err == nil && unfit == "" {
		if r, err = do(j); err != nil && ctx.Err() == nil { // nothing was clicked
			k.log(k.cfg.Log.Warn(), s).Err(err).Str("phase", string(s.Phase)).Msg("no browser could be had for a browser skill")
			return unavailable(noBrowser), ""
		}
	}
	if err != nil && ctx.Err() == nil {
		k.log(k.cfg.Log.Warn(), s).Err(err).Str("phase", string(s.Phase)).Msg("a browser skill could not run")
		return nil, ""
	}
	return r, unfit
}

// over reports whether the calling run has ended, as after a cancel that came before StartSkill did: its end
// told a run that did not exist yet, and tells it no more. What its end tells a run that exists may still be on its way.
func (k *kind) over(ctx context.Context, s *State) bool {
	if s.AgentRun == nil {
		return false
	}
	at, err := k.cfg.Store.Standing(ctx, s.Tenant, nil, s.AgentRun)
	return err == nil && (at.Ended == nil || *at.Ended)
}

func (k *kind) prepare(ctx context.Context, s *State) any {
	give, ok := k.take(ctx, s.Tenant, false)
	if !ok {
		return Prepared{unavailable(busy)}
	}
	defer give()
	if k.over(ctx, s) {
		return CallerEnded{}
	}
	r, unfit := k.part(ctx, s, firstFilling, func(j *skill.Job) (*skill.Report, error) {
		session, r, err := k.cfg.Browser.Prepare(ctx, j)
		if session != nil {
			session.Close() // no page stays open while people decide
		}
		return r, err
	})
	if unfit != "" {
		return Unfit{unfit}
	}
	failpoint.Hit(pointPrepared)
	return Prepared{r}
}

// reprepare fills the form with the approved values and compares what the page shows with them.
// The page waits on the desk for Commit.
func (k *kind) reprepare(ctx context.Context, s *State, d *desk) any {
	give, ok := k.take(ctx, s.Tenant, true)
	if !ok {
		return Reprepared{unavailable(busy)}
	}
	open := &open{give: give}
	defer func() { open.close() }()
	if k.over(ctx, s) { // as after a receipt that missed
		return CallerEnded{}
	}
	r, unfit := k.part(ctx, s, secondFilling, func(j *skill.Job) (*skill.Report, error) {
		session, r, err := k.cfg.Browser.Prepare(ctx, j)
		if open.session = session; err != nil || r == nil || r.Event != skill.Landed || session == nil {
			return r, err
		}
		preview := ""
		if s.Page != nil {
			preview = j.Definition.At(s.Page.URL, j.Values, s.Changed)
		}
		out := *r
		out.Event = skill.Ready
		if m := j.Definition.Compare(preview, r.Page.URL, j.Values, r.Read); m != nil {
			out.Event = skill.Fails
			out.Fault = &skill.Fault{Code: skill.CodePrecommitMismatch, Field: m.Field, URL: m.URL, Message: "The page is not the one that was approved."}
		}
		return &out, nil
	})
	if unfit == "" && r != nil && r.Event == skill.Ready {
		var err error
		if _, unfit, err = k.fit(ctx, s); err != nil { // once more, just before the receipt
			r = nil
		}
	}
	switch {
	case unfit != "":
		return Unfit{unfit}
	case r == nil || r.Event != skill.Ready:
		return Reprepared{r}
	case ctx.Err() != nil || !d.put(open):
		return nil
	}
	open = noPage // it is on the desk
	failpoint.Hit(pointReady)
	return Reprepared{r}
}

func (k *kind) readOnly(ctx context.Context, s *State) any {
	give, ok := k.take(ctx, s.Tenant, s.Plan.Gate != skill.GateNone)
	if !ok {
		return ReadDone{unavailable(busy)}
	}
	defer give()
	if k.over(ctx, s) {
		return CallerEnded{}
	}
	filling := firstFilling
	if s.Page != nil {
		filling = secondFilling
	}
	r, unfit := k.part(ctx, s, filling, func(j *skill.Job) (*skill.Report, error) { return k.cfg.Browser.Read(ctx, j) })
	if unfit != "" {
		return Unfit{unfit}
	}
	return ReadDone{r}
}

// click commits once, and checks. The receipt is durable: this effect is owed only since then, and
// only the activation that wrote it has the page.
func (k *kind) click(ctx context.Context, a durable.Activation, d *desk) any {
	o := d.take()
	if o == nil {
		return Committed{Click: &skill.Report{Event: skill.Lost}}
	}
	defer o.close()
	failpoint.Hit(pointReceipt)
	click := o.session.Commit(ctx)
	failpoint.Hit(pointClicked)
	if click == nil || click.Event != skill.Clicked {
		return Committed{Click: click}
	}
	// The status committed is worth a commit of its own: after a crash the row tells
	// that the click was answered. The checks do not wait for storage.
	asked, cancel := context.WithTimeout(ctx, tellTime)
	_, err := k.actors.Ask(asked, a.Address, Clicked{click})
	cancel()
	if err != nil && ctx.Err() == nil {
		k.cfg.Log.Warn().Err(err).Stringer("tenant", a.Address.Tenant).Stringer("skill_run", a.Address.ID).Msg("the status of a committed skill run could not be written yet")
	}
	failpoint.Hit(pointVerify)
	verify := o.session.Verify(ctx)
	failpoint.Hit(pointVerified)
	return Committed{click, verify}
}

func (k *kind) compensate(ctx context.Context, s *State) any {
	give, ok := k.take(ctx, s.Tenant, true)
	if !ok {
		return Compensated{unavailable(busy)}
	}
	defer give()
	if k.cfg.Browser.Available() != nil {
		return Compensated{unavailable(noBrowser)}
	}
	// What is granted now does not matter: the steps belong to a commit that was approved.
	var row *store.Skill
	err := retry(ctx, func() (err error) { row, err = k.cfg.Store.Skill(ctx, s.Tenant, s.Skill); return err })
	if err != nil || row == nil || row.Revision != s.Taught {
		return uncompensated("The skill's steps cannot be read any more.")
	}
	j, unfit, err := k.bound(ctx, s, row, undoing) // the fresh session signs in, with the run's values
	if unfit != "" {
		return uncompensated(unfit)
	}
	var r *skill.Report
	if err == nil {
		r, err = k.cfg.Browser.Compensate(ctx, j)
	}
	if err != nil && ctx.Err() == nil {
		k.log(k.cfg.Log.Warn(), s).Err(err).Msg("the compensation of a browser skill could not run")
		r = nil
	}
	failpoint.Hit(pointUndone)
	return Compensated{r}
}

// uncompensated is a compensation of which no step was begun.
func uncompensated(why string) any {
	return Compensated{&skill.Report{Event: skill.Fails, Fault: &skill.Fault{Message: why}}}
}

// take waits for a place of the node; what people decided on waits before the other runs of its tenant. ok is false if too much
// work waits already, or if the activation has ended. A tenant has half of the kind's effects, and a commit, whose page has a
// place, must not wait for those that wait for places.
func (k *kind) take(ctx context.Context, t id.TenantID, decided bool) (give func(), ok bool) {
	waiting.Inc()
	defer waiting.Dec()
	var err error
	if decided {
		ok, err = k.places.TakeAhead(ctx, t, func(mine, all int) bool { return mine < k.effects/4 && all < k.effects/2 })
	} else {
		ok, err = k.places.TakeIf(ctx, t, func(mine, all int) bool {
			return mine < min(eachWaits, k.effects/4) && all < min(mostWait, k.effects/4)
		})
	}
	if !ok || err != nil {
		return nil, false
	}
	sessions.Inc()
	return sync.OnceFunc(func() {
		sessions.Dec()
		k.places.Give(t)
	}), true
}

// read answers a question of the machine.
func (k *kind) read(ctx context.Context, a cluster.Address, question any) (any, error) {
	row, err := k.cfg.Store.Run(ctx, a.Tenant, id.SkillRunID{UUID: a.ID})
	if err != nil {
		return nil, err
	}
	if row == nil {
		return Seen{}, nil // it goes with its skill
	}
	switch q := question.(type) {
	case Look:
		at, err := k.cfg.Store.Standing(ctx, a.Tenant, row.Approval, row.AgentRun)
		seen := Seen{RunEnded: row.AgentRun != nil && (at.Ended == nil || *at.Ended), CallEnded: row.Approval != nil && at.Approval == nil}
		if at.Approval != nil {
			seen.Approval = *at.Approval
		}
		return seen, err
	case CheckApproval:
		return k.approvable(ctx, a, row, q)
	}
	panic(fmt.Sprintf("skillrun: unknown question %T", question))
}

// approvable checks what a commit is asked for against the approval itself, and the values against
// the skill.
func (k *kind) approvable(ctx context.Context, a cluster.Address, row *store.SkillRun, q CheckApproval) (any, error) {
	at, err := k.cfg.Store.Standing(ctx, a.Tenant, &q.Approval, row.AgentRun)
	if err != nil {
		return nil, err
	}
	digest := tool.Digest(q.Args)
	if at.Approval == nil || *at.Approval != lifecycle.ApprovalApproved && *at.Approval != lifecycle.ApprovalEdited || string(at.Digest) != string(digest[:]) {
		return Approvable{Why: "These arguments are not approved."}, nil
	}
	of, err := k.cfg.Store.Skill(ctx, a.Tenant, row.Skill)
	switch {
	case err != nil:
		return nil, err
	case of == nil:
		return Approvable{Unfit: "The skill was deleted. Nothing was committed."}, nil
	case of.Revision != row.Revision:
		return Approvable{Unfit: "The skill was taught anew. Nothing was committed."}, nil
	}
	b, faults, err := of.Definition.Bind(ctx, skill.ForEdit, q.Args)
	if err != nil {
		return nil, err
	}
	if len(faults) > 0 {
		return Approvable{Why: skill.InvalidArgs(faults).Error()}, nil
	}
	out := Approvable{Approved: true, Values: b.Values.JSON(), Key: row.Key}
	if row.AgentRun != nil {
		out.Key = skill.Key(a.Tenant, *row.AgentRun, row.Slug, opOf(row.Mode), b.Values)
	}
	if out.Key != row.Key { // edited
		holder, err := k.cfg.Store.Holder(ctx, a.Tenant, out.Key)
		if err != nil {
			return nil, err
		}
		out.Taken = holder != nil
	}
	return out, nil
}

// open is a page with the place of the node that it takes. desk holds the page of an activation
// between Reprepare and Commit.
type (
	open struct {
		session Session
		give    func()
	}
	desk struct {
		mu     sync.Mutex // guards the fields below
		page   *open
		closed bool
	}
)

var noPage = &open{}

func (o *open) close() {
	if o.session != nil {
		o.session.Close()
	}
	if o.give != nil {
		o.give()
	}
}

// put keeps a page; false if the desk is closed.
func (d *desk) put(o *open) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.page != nil {
		return false
	}
	d.page = o
	return true
}

// take returns the page, nil if there is none. It is the caller's then.
func (d *desk) take() *open {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := d.page
	d.page = nil
	return o
}

// shut closes the desk and returns a page that was not taken.
func (d *desk) shut() *open {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := d.page
	d.page, d.closed = nil, true
	return o
}

// desk returns the desk of an activation.
func (k *kind) desk(a cluster.Address) *desk {
	d, _ := k.desks.LoadOrStore(a, &desk{})
	return d.(*desk)
}

// clear closes the desk of an activation that needs no page any more.
func (k *kind) clear(a cluster.Address) {
	d, ok := k.desks.LoadAndDelete(a)
	if !ok {
		return
	}
	if o := d.(*desk).shut(); o != nil {
		o.close()
	}
}
