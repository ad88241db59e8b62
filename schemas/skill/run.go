package skill

import "slices"

// Mode is whether a run commits.
type Mode string

// Values of Mode.
const (
	Run    Mode = "run"
	DryRun Mode = "dry_run"
)

// Modes lists every value.
var Modes = []Mode{Run, DryRun}

// Status is the status of a run as it is shown (open-parts.md, Browser skills).
type Status string

// Values of Status.
const (
	Running            Status = "running"
	Prepared           Status = "prepared" // waits for the decision
	StatusCommitting   Status = "committing"
	StatusCommitted    Status = "committed"
	Succeeded          Status = "succeeded"
	Failed             Status = "failed"
	Rejected           Status = "rejected"
	VerificationFailed Status = "verification_failed"
	OutOfScope         Status = "out_of_scope"
)

// Statuses lists every value, in the specification's order.
var Statuses = []Status{Running, Prepared, StatusCommitting, StatusCommitted, Succeeded, Failed, Rejected, VerificationFailed, OutOfScope}

// Code is why a run did not land: extensions.code of BROWSER_SKILL_RUN_FAILED, and what the model
// hears.
type Code string

// Values of Code (service.md, Errors).
const (
	CodeNotFound           Code = "not_found"
	CodeStepFailed         Code = "step_failed"
	CodeSessionExpired     Code = "session_expired"
	CodePrecommitMismatch  Code = "precommit_mismatch"
	CodeVerificationFailed Code = "verification_failed"
	CodeOutOfScope         Code = "out_of_scope"
	CodeUnknownOutcome     Code = "unknown_outcome"
)

// Codes lists every value.
var Codes = []Code{CodeNotFound, CodeStepFailed, CodeSessionExpired, CodePrecommitMismatch, CodeVerificationFailed, CodeOutOfScope, CodeUnknownOutcome}

// RunPhase is where a run is in its sequence.
type RunPhase string

// Values of RunPhase.
const (
	Preparing    RunPhase = "preparing"    // fills the form up to the commit step
	Waiting      RunPhase = "waiting"      // for the decision of a person
	Repreparing  RunPhase = "repreparing"  // fills it again, with the approved values
	Reading      RunPhase = "reading"      // a skill without a commit step: all steps and checks
	Committing   RunPhase = "committing"   // the receipt is written; the click is not known to have landed
	Committed    RunPhase = "committed"    // it has; later steps, checks and results
	Compensating RunPhase = "compensating" // a check failed
	Ended        RunPhase = "ended"
)

// RunPhases lists every value.
var RunPhases = []RunPhase{Preparing, Waiting, Repreparing, Reading, Committing, Committed, Compensating, Ended}

// Gate is when a run waits for a person.
type Gate string

// Values of Gate.
const (
	GateNone     Gate = "none"
	GateBefore   Gate = "before"    // before any step
	GateAtCommit Gate = "at_commit" // after the form is filled
)

// Plan is what decides the sequence of a run.
type Plan struct {
	Mode        Mode `json:"mode"`
	Gate        Gate `json:"gate"`
	Commits     bool `json:"commits,omitempty"`     // there is a commit step
	Compensates bool `json:"compensates,omitempty"` // there are compensation steps
	// Edits says whether the approver may change the values: a policy that changes later does not
	// change an open approval.
	Edits Edits `json:"edits,omitempty"`
}

// Edits is what the policy of a skill said of edits when a run began; empty in runs of an earlier
// build.
type Edits string

// Values of Edits.
const (
	EditsAllowed Edits = "allowed"
	EditsRefused Edits = "refused"
)

// Edits returns what the policy says now.
func (p *Policy) Edits() Edits {
	if p.AllowEditParams {
		return EditsAllowed
	}
	return EditsRefused
}

// PlanOf returns the plan of a run. gated means that another policy or rule requires an approval
// too. A run that commits is always gated: the skill's policy is a floor.
func PlanOf(mode Mode, d *Definition, p *Policy, gated bool) Plan {
	out := Plan{Mode: mode, Gate: GateNone, Commits: d.CommitStepID != "", Compensates: len(d.Compensation) > 0, Edits: p.Edits()}
	switch {
	case mode == DryRun: // the approval of a dry run, if any, is the agent run's
	case p.Approval == AlwaysBeforeRun:
		out.Gate = GateBefore
	case out.Commits:
		out.Gate = GateAtCommit
	case gated || p.Approval != NoneForIdempotentReads:
		out.Gate = GateBefore
	}
	return out
}

// Event is what happens to a run.
type Event string

// Values of Event.
const (
	Landed       Event = "landed"        // a prepare reached the commit point
	Ready        Event = "ready"         // a re-prepare did, the page is what was approved, the commit's target is located
	Fails        Event = "fails"         // a step failed; the code says how
	LeftScope    Event = "left_scope"    // a landing outside the skill's hosts
	Approved     Event = "approved"      // approve or edit reached the threshold
	Refused      Event = "refused"       // reject, respond or expiry
	Cancelled    Event = "cancelled"     // the agent run was cancelled
	Withdrawn    Event = "withdrawn"     // the skill was deleted, disabled or is no longer granted
	Clicked      Event = "clicked"       // the commit was answered
	Verified     Event = "verified"      // all checks passed
	ChecksFailed Event = "checks_failed" // one did not
	Compensated  Event = "compensated"   // the compensation steps ended, well or not
	Lost         Event = "lost"          // no answer, a cut connection, or the browser died
	Crashed      Event = "crashed"       // this process took over from one that died
)

// Events lists every value.
var Events = []Event{Landed, Ready, Fails, LeftScope, Approved, Refused, Cancelled, Withdrawn, Clicked, Verified, ChecksFailed, Compensated, Lost, Crashed}

// Work is what a run owes after a decision was committed.
type Work string

// Values of Work.
const (
	DoPrepare    Work = "prepare"
	DoAsk        Work = "ask" // open the approval with the frozen preview
	DoReprepare  Work = "reprepare"
	DoRead       Work = "read"
	DoCommit     Work = "commit" // the one click
	DoVerify     Work = "verify" // later steps, checks in order, result fields
	DoCompensate Work = "compensate"
	DoNothing    Work = ""
)

// Compensation is what became of the compensation steps.
type Compensation string

// Values of Compensation.
const (
	NotCompensated Compensation = ""
	Ran            Compensation = "ran" // the run's record says how far; never told as undone
	Interrupted    Compensation = "interrupted"
)

// State is where a run stands.
type State struct {
	Plan         Plan         `json:"plan"`
	Phase        RunPhase     `json:"phase"`
	Status       Status       `json:"status"`
	Code         Code         `json:"code,omitempty"`
	Receipt      bool         `json:"receipt,omitempty"`  // written, so the commit may have happened
	Answered     bool         `json:"answered,omitempty"` // the commit was; rows of earlier builds do not say so
	Withdrawn    bool         `json:"withdrawn,omitempty"`
	Compensation Compensation `json:"compensation,omitempty"`
}

// Begin returns the state of a new run and its first work.
func Begin(p Plan) (State, Work) {
	s := State{Plan: p, Phase: Preparing, Status: Running}
	switch {
	case p.Mode == DryRun, p.Gate == GateAtCommit && p.Commits:
		return s, DoPrepare
	case p.Gate == GateNone && !p.Commits:
		s.Phase = Reading
		return s, DoRead
	}
	// What remains waits: also a run that commits and has no gate, which no policy allows.
	s.Phase, s.Status = Waiting, Prepared
	return s, DoAsk
}

// move is one cell of the table: the next phase, its status, and the work owed on entering it.
type move struct {
	phase  RunPhase
	status Status
	code   Code
	work   Work
}

func end(status Status, code Code) move { return move{phase: Ended, status: status, code: code} }

// table holds every event that a phase answers. Anything else leaves the state as it is: it came
// late, or concerns another activation.
var table = map[RunPhase]map[Event]move{
	Preparing: {
		Landed:    {phase: Waiting, status: Prepared, work: DoAsk}, // of a dry run: ended, succeeded
		Fails:     end(Failed, CodeStepFailed),                     // with the code of the fault
		LeftScope: end(OutOfScope, CodeOutOfScope),
		Lost:      end(Failed, CodeStepFailed),
		Cancelled: end(Rejected, ""),
		Withdrawn: end(Failed, ""),
		Crashed:   {phase: Preparing, status: Running, work: DoPrepare},
	},
	Waiting: {
		Approved:  {phase: Repreparing, status: Running, work: DoReprepare}, // without a commit step: reading
		Refused:   end(Rejected, ""),
		Cancelled: end(Rejected, ""),
		Withdrawn: end(Failed, ""),
		Crashed:   {phase: Waiting, status: Prepared}, // the approval stands
	},
	Repreparing: {
		Ready:     {phase: Committing, status: StatusCommitting, work: DoCommit},
		Fails:     end(Failed, CodeStepFailed),
		LeftScope: end(OutOfScope, CodeOutOfScope),
		Lost:      end(Failed, CodeStepFailed),
		Cancelled: end(Rejected, ""),
		Withdrawn: end(Failed, ""),
		Crashed:   {phase: Repreparing, status: Running, work: DoReprepare},
	},
	Reading: {
		Verified:     end(Succeeded, ""),
		ChecksFailed: end(Failed, CodeVerificationFailed),
		Fails:        end(Failed, CodeStepFailed),
		LeftScope:    end(OutOfScope, CodeOutOfScope),
		Lost:         end(Failed, CodeStepFailed),
		Cancelled:    end(Rejected, ""),
		Withdrawn:    end(Failed, ""),
		Crashed:      {phase: Reading, status: Running, work: DoRead},
	},
	Committing: {
		Clicked:   {phase: Committed, status: StatusCommitted, work: DoVerify},
		LeftScope: end(OutOfScope, CodeOutOfScope),
		Fails:     end(StatusCommitting, CodeUnknownOutcome), // a click that fails may have been sent
		Lost:      end(StatusCommitting, CodeUnknownOutcome),
		Crashed:   end(StatusCommitting, CodeUnknownOutcome),
	},
	Committed: {
		Verified:     end(Succeeded, ""),
		ChecksFailed: {phase: Compensating, status: VerificationFailed, code: CodeVerificationFailed, work: DoCompensate}, // without compensation steps: ended
		Fails:        end(VerificationFailed, CodeVerificationFailed),                                                     // a later step: no check failed, so nothing compensates
		LeftScope:    end(OutOfScope, CodeOutOfScope),
		Lost:         end(StatusCommitted, CodeUnknownOutcome),
		Crashed:      end(StatusCommitted, CodeUnknownOutcome),
	},
	Compensating: {
		Compensated: end(VerificationFailed, CodeVerificationFailed),
		LeftScope:   end(VerificationFailed, CodeVerificationFailed),
		Fails:       end(VerificationFailed, CodeVerificationFailed),
		Lost:        end(VerificationFailed, CodeVerificationFailed),
		Crashed:     end(VerificationFailed, CodeVerificationFailed),
	},
	Ended: {},
}

// Next returns what follows from an event, and the work that is owed once it is committed. changed
// is false for an event that the phase does not answer: nothing is written. code is how Fails
// happened.
func Next(s State, e Event, code Code) (next State, work Work, changed bool) {
	m, ok := table[s.Phase][e]
	if !ok {
		return s, DoNothing, false
	}
	switch {
	case s.Phase == Preparing && e == Landed && s.Plan.Mode == DryRun:
		m = end(Succeeded, "")
	case s.Phase == Waiting && e == Approved && !s.Plan.Commits:
		m = move{phase: Reading, status: Running, work: DoRead}
	case s.Phase == Committed && e == ChecksFailed && !s.Plan.Compensates:
		m = end(VerificationFailed, CodeVerificationFailed)
	case e == Fails && m.code == CodeStepFailed && failsWith(s.Phase, code):
		m.code = code
	}
	next = s
	next.Phase, next.Status, next.Code = m.phase, m.status, m.code
	next.Receipt = s.Receipt || m.phase == Committing
	next.Answered = s.Answered || e == Clicked
	next.Withdrawn = s.Withdrawn || e == Withdrawn
	if s.Phase == Compensating {
		next.Compensation = Ran
		if e == Crashed || e == Lost {
			next.Compensation = Interrupted
		}
	}
	return next, m.work, true
}

// failsWith reports whether a step of a phase can fail with a code.
func failsWith(in RunPhase, code Code) bool {
	if code == CodePrecommitMismatch {
		return in == Repreparing
	}
	return slices.Contains([]Code{CodeNotFound, CodeStepFailed, CodeSessionExpired}, code)
}

// HoldsKey reports whether the run keeps its idempotency key: while it runs, and for good once its
// receipt is written. A run that committed nothing frees its key when it ends.
func (s State) HoldsKey() bool { return s.Phase != Ended || s.Receipt }

// Repeat is the answer to a call whose key a run holds.
type Repeat string

// Values of Repeat.
const (
	RepeatNew     Repeat = "new"     // no run holds the key: a new one begins
	RepeatJoin    Repeat = "join"    // it is in flight: the call waits for the same run
	RepeatStored  Repeat = "stored"  // the stored result, with duplicate: true
	RepeatUnknown Repeat = "unknown" // unknown_outcome: it is never driven again
)

// Again returns how a call with the same values in the same agent run is answered.
func (s State) Again() Repeat {
	switch {
	case !s.HoldsKey():
		return RepeatNew
	case s.Phase != Ended:
		return RepeatJoin
	case s.Code == CodeUnknownOutcome:
		return RepeatUnknown
	}
	return RepeatStored
}

// Outcome is what the model hears of a run that has ended (service.md, Browser skill run outcomes).
type Outcome string

// Values of Outcome besides those of Code.
const (
	OutcomeNone     Outcome = ""         // it has not ended
	OutcomeOK       Outcome = "ok"       // the result
	OutcomeRejected Outcome = "rejected" // { rejected: true, feedback }
	OutcomeFailed   Outcome = "failed"   // the tool call fails: the skill is no longer there for the agent
)

// Outcome returns what the model hears: one of the above, or the text of Code.
func (s State) Outcome() Outcome {
	switch {
	case s.Phase != Ended:
		return OutcomeNone
	case s.Code != "":
		return Outcome(s.Code)
	case s.Status == Succeeded:
		return OutcomeOK
	case s.Status == Rejected:
		return OutcomeRejected
	}
	return OutcomeFailed
}
