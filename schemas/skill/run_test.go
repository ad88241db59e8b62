package skill

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var plans = []Plan{
	{Mode: DryRun, Gate: GateNone, Commits: true},
	{Mode: DryRun, Gate: GateNone},
	{Mode: Run, Gate: GateAtCommit, Commits: true},
	{Mode: Run, Gate: GateAtCommit, Commits: true, Compensates: true},
	{Mode: Run, Gate: GateBefore, Commits: true, Compensates: true},
	{Mode: Run, Gate: GateBefore},
	{Mode: Run, Gate: GateNone},
	{Mode: Run, Gate: GateNone, Commits: true},
	{Mode: Run, Gate: GateAtCommit},
}

// story plays events and returns every state and all work.
func story(p Plan, events string) (State, []Work) {
	s, w := Begin(p)
	work := []Work{w}
	for _, e := range strings.Fields(events) {
		name, code, _ := strings.Cut(e, ":")
		next, w, _ := Next(s, Event(name), Code(code))
		if s = next; w != DoNothing {
			work = append(work, w)
		}
	}
	return s, work
}

// service.md, Browser skill approval modes and Browser skill run outcomes; open-parts.md, Changes,
// Browser skills, Runs. The name of a row is the specification's sentence.
func TestRunOutcomes(t *testing.T) {
	t.Parallel()
	form := Plan{Mode: Run, Gate: GateAtCommit, Commits: true, Compensates: true}
	bare := Plan{Mode: Run, Gate: GateAtCommit, Commits: true}
	before := Plan{Mode: Run, Gate: GateBefore, Commits: true}
	reads := Plan{Mode: Run, Gate: GateNone}
	gatedReads := Plan{Mode: Run, Gate: GateBefore}
	dry := Plan{Mode: DryRun, Commits: true}
	for _, row := range []struct {
		name, events string
		plan         Plan
		status       Status
		hears        Outcome
		holds        bool
		work         string
	}{
		{"success", "landed approved ready clicked verified", form, Succeeded, OutcomeOK, true, "prepare ask reprepare commit verify"},
		{"selector not found before commit", "fails:not_found", form, Failed, "not_found", false, "prepare"},
		{"a prepare that cannot land opens no approval", "fails:step_failed approved ready", form, Failed, "step_failed", false, "prepare"},
		{"login wall still showing after sign-in steps", "fails:session_expired", form, Failed, "session_expired", false, "prepare"},
		{"page differs from approved preview", "landed approved fails:precommit_mismatch", form, Failed, "precommit_mismatch", false, "prepare ask reprepare"},
		{"the page that is first prepared has no preview to differ from", "fails:precommit_mismatch", form, Failed, "step_failed", false, "prepare"},
		{"approver rejected, responded, or request expired", "landed refused", form, Rejected, OutcomeRejected, false, "prepare ask"},
		{"committed, a check failed; compensation runs", "landed approved ready clicked checks_failed compensated", form, VerificationFailed, "verification_failed", true, "prepare ask reprepare commit verify compensate"},
		{"committed, a check failed; nothing to compensate", "landed approved ready clicked checks_failed", bare, VerificationFailed, "verification_failed", true, "prepare ask reprepare commit verify"},
		{"crash between the receipt and the verification: committing", "landed approved ready crashed", form, StatusCommitting, "unknown_outcome", true, "prepare ask reprepare commit"},
		{"crash between the receipt and the verification: committed", "landed approved ready clicked crashed", form, StatusCommitted, "unknown_outcome", true, "prepare ask reprepare commit verify"},
		{"no automatic compensation", "landed approved ready clicked crashed checks_failed compensated", form, StatusCommitted, "unknown_outcome", true, "prepare ask reprepare commit verify"},
		{"landing outside the skill's hosts", "left_scope", form, OutOfScope, "out_of_scope", false, "prepare"},
		{"landing off the hosts by the commit is out_of_scope, and the key is kept", "landed approved ready left_scope", form, OutOfScope, "out_of_scope", true, "prepare ask reprepare commit"},
		{"a commit that gets no answer is unknown_outcome, and the key is kept", "landed approved ready lost", form, StatusCommitting, "unknown_outcome", true, "prepare ask reprepare commit"},
		{"a click that fails may have been sent", "landed approved ready fails:step_failed", form, StatusCommitting, "unknown_outcome", true, "prepare ask reprepare commit"},
		{"the browser dies after the commit", "landed approved ready clicked lost", form, StatusCommitted, "unknown_outcome", true, "prepare ask reprepare commit verify"},
		{"a later step that fails compensates nothing", "landed approved ready clicked fails:not_found", form, VerificationFailed, "verification_failed", true, "prepare ask reprepare commit verify"},
		{"a kill in prepare prepares again", "crashed landed approved ready clicked verified", form, Succeeded, OutcomeOK, true, "prepare prepare ask reprepare commit verify"},
		{"a kill while waiting leaves the approval", "landed crashed approved ready clicked verified", form, Succeeded, OutcomeOK, true, "prepare ask reprepare commit verify"},
		{"a kill in re-prepare goes on and commits once", "landed approved crashed ready clicked verified", form, Succeeded, OutcomeOK, true, "prepare ask reprepare reprepare commit verify"},
		{"a kill in the compensation repeats nothing", "landed approved ready clicked checks_failed crashed compensated", form, VerificationFailed, "verification_failed", true, "prepare ask reprepare commit verify compensate"},
		{"an agent run that is cancelled leaves its skill run rejected", "landed cancelled approved", form, Rejected, OutcomeRejected, false, "prepare ask"},
		{"a cancel in prepare", "cancelled landed", form, Rejected, OutcomeRejected, false, "prepare"},
		{"a cancel behind the receipt changes nothing", "landed approved ready cancelled clicked cancelled verified", form, Succeeded, OutcomeOK, true, "prepare ask reprepare commit verify"},
		{"a skill that is deleted while an approval is open commits nothing; the tool call fails", "landed withdrawn approved ready", form, Failed, OutcomeFailed, false, "prepare ask"},
		{"a skill that is deleted in re-prepare", "landed approved withdrawn ready", form, Failed, OutcomeFailed, false, "prepare ask reprepare"},
		{"always_before_run: nothing before approval", "", before, Prepared, OutcomeNone, true, "ask"},
		{"always_before_run: a person decides before any step", "landed ready clicked", before, Prepared, OutcomeNone, true, "ask"},
		{"always_before_run: success", "approved ready clicked verified", before, Succeeded, OutcomeOK, true, "ask reprepare commit verify"},
		{"none_for_idempotent_reads", "verified", reads, Succeeded, OutcomeOK, false, "read"},
		{"a failed check of a read is told as a failure and frees the key", "checks_failed", reads, Failed, "verification_failed", false, "read"},
		{"a read that is killed reads again", "crashed verified", reads, Succeeded, OutcomeOK, false, "read read"},
		{"a read that a tenant's policy gates", "approved verified", gatedReads, Succeeded, OutcomeOK, false, "ask read"},
		{"a dry run that landed is succeeded", "landed", dry, Succeeded, OutcomeOK, false, "prepare"},
		{"a dry run opens no approval and writes no receipt", "landed approved ready clicked", dry, Succeeded, OutcomeOK, false, "prepare"},
		{"a dry run that does not land", "fails:not_found", dry, Failed, "not_found", false, "prepare"},
		{"in flight", "landed", form, Prepared, OutcomeNone, true, "prepare ask"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s, work := story(row.plan, row.events)
			if s.Status != row.status || s.Outcome() != row.hears || s.HoldsKey() != row.holds || joined(work) != row.work {
				t.Errorf("%+v hears %q holds %v work %q", s, s.Outcome(), s.HoldsKey(), joined(work))
			}
		})
	}
}

func joined(work []Work) string {
	var out []string
	for _, w := range work {
		out = append(out, string(w))
	}
	return strings.Join(out, " ")
}

// A row in committing or committed is never driven again; the same values in the same conversation
// return the stored result.
func TestTheSameCallAgain(t *testing.T) {
	t.Parallel()
	form := Plan{Mode: Run, Gate: GateAtCommit, Commits: true}
	for events, want := range map[string]Repeat{
		"":                                            RepeatJoin,
		"landed":                                      RepeatJoin,
		"landed refused":                              RepeatNew,
		"fails:not_found":                             RepeatNew,
		"left_scope":                                  RepeatNew,
		"landed approved ready":                       RepeatJoin,
		"landed approved ready crashed":               RepeatUnknown,
		"landed approved ready lost":                  RepeatUnknown,
		"landed approved ready clicked":               RepeatJoin,
		"landed approved ready left_scope":            RepeatStored,
		"landed approved ready clicked crashed":       RepeatUnknown,
		"landed approved ready clicked verified":      RepeatStored,
		"landed approved ready clicked checks_failed": RepeatStored,
	} {
		if s, _ := story(form, events); s.Again() != want {
			t.Errorf("%q: %s, want %s", events, s.Again(), want)
		}
	}
}

func TestPlans(t *testing.T) {
	t.Parallel()
	commits, looks := &Definition{CommitStepID: "go", Compensation: []Step{{}}}, &Definition{}
	for _, row := range []struct {
		mode     Mode
		d        *Definition
		approval Approval
		gated    bool
		want     Plan
	}{
		{Run, commits, AtCommitPoint, false, Plan{Run, GateAtCommit, true, true, EditsRefused}},
		{Run, commits, AtCommitPoint, true, Plan{Run, GateAtCommit, true, true, EditsRefused}},
		{Run, commits, AlwaysBeforeRun, false, Plan{Run, GateBefore, true, true, EditsRefused}},
		{Run, commits, DryRunOnly, false, Plan{Run, GateAtCommit, true, true, EditsRefused}}, // never offered; a floor all the same
		{Run, commits, NoneForIdempotentReads, false, Plan{Run, GateAtCommit, true, true, EditsRefused}},
		{Run, looks, NoneForIdempotentReads, false, Plan{Run, GateNone, false, false, EditsRefused}},
		{Run, looks, NoneForIdempotentReads, true, Plan{Run, GateBefore, false, false, EditsRefused}},
		{Run, looks, AlwaysBeforeRun, false, Plan{Run, GateBefore, false, false, EditsRefused}},
		{DryRun, commits, AlwaysBeforeRun, true, Plan{DryRun, GateNone, true, true, EditsRefused}},
	} {
		if got := PlanOf(row.mode, row.d, &Policy{Approval: row.approval}, row.gated); got != row.want {
			t.Errorf("%s %s gated %v: %+v", row.mode, row.approval, row.gated, got)
		}
	}
	if got := PlanOf(Run, commits, &Policy{AllowEditParams: true}, false).Edits; got != EditsAllowed {
		t.Errorf("edits are %s", got)
	}
}

// told is a second implementation of the sequence. It keeps no phase: it reads the whole history
// with the sentences of the specification. Each event that the sentences do not expect is dropped.
func told(p Plan, history []Event, codes []Code) (status Status, hears Outcome, clicks int, holds bool) {
	var (
		asks                                         = p.Mode == Run && (p.Gate != GateNone || p.Commits)
		commits                                      = p.Mode == Run && p.Commits
		prepares                                     = p.Mode == DryRun || p.Gate == GateAtCommit && p.Commits // before the approval
		landed, approved, receipt, answered, undoing bool
	)
	landed = !prepares
	working := func() bool { return (!landed || approved || !asks) && !receipt } // a browser is at work before the receipt
	over := func(s Status, h Outcome) (Status, Outcome, int, bool) {
		n := 0
		if receipt {
			n = 1
		}
		return s, h, n, receipt
	}
	for i, e := range history {
		switch {
		case undoing:
			switch e {
			case Compensated, Crashed, Lost, Fails, LeftScope:
				return over(VerificationFailed, "verification_failed")
			}
		case answered:
			switch e {
			case Verified:
				return over(Succeeded, OutcomeOK)
			case ChecksFailed:
				if !p.Compensates {
					return over(VerificationFailed, "verification_failed")
				}
				undoing = true
			case Fails:
				return over(VerificationFailed, "verification_failed")
			case LeftScope:
				return over(OutOfScope, "out_of_scope")
			case Crashed, Lost:
				return over(StatusCommitted, "unknown_outcome")
			}
		case receipt:
			switch e {
			case Clicked:
				answered = true
			case LeftScope:
				return over(OutOfScope, "out_of_scope")
			case Crashed, Lost, Fails:
				return over(StatusCommitting, "unknown_outcome")
			}
		case e == Cancelled:
			return over(Rejected, OutcomeRejected)
		case e == Withdrawn:
			return over(Failed, OutcomeFailed)
		case working() && e == LeftScope:
			return over(OutOfScope, "out_of_scope")
		case working() && e == Lost:
			return over(Failed, "step_failed")
		case working() && e == Fails:
			code := codes[i]
			known := code == "not_found" || code == "step_failed" || code == "session_expired"
			if !known && !(code == "precommit_mismatch" && commits && landed) {
				code = "step_failed"
			}
			return over(Failed, Outcome(code))
		case !landed && e == Landed:
			if landed = true; p.Mode == DryRun {
				return over(Succeeded, OutcomeOK)
			}
		case landed && asks && !approved && e == Approved:
			approved = true
		case landed && asks && !approved && e == Refused:
			return over(Rejected, OutcomeRejected)
		case working() && landed && commits && e == Ready:
			receipt = true
		case working() && landed && !commits && e == Verified:
			return over(Succeeded, OutcomeOK)
		case working() && landed && !commits && e == ChecksFailed:
			return over(Failed, "verification_failed")
		}
	}
	status = Running
	switch {
	case undoing:
		status = VerificationFailed
	case answered:
		status = StatusCommitted
	case receipt:
		status = StatusCommitting
	case landed && asks && !approved:
		status = Prepared
	}
	clicks = 0
	if receipt {
		clicks = 1
	}
	return status, OutcomeNone, clicks, true
}

// The laws over random histories, and agreement with the second implementation.
func TestLawsOfRuns(t *testing.T) {
	t.Parallel()
	saw := map[string]int{}
	one := func(t *rapid.T) {
		p := rapid.SampledFrom(plans).Draw(t, "plan")
		s, w := Begin(p)
		commits, asks, compensations := 0, 0, 0
		count := func(w Work, s State) {
			switch w {
			case DoCommit:
				commits++
				if !s.Receipt || s.Phase != Committing || p.Mode == DryRun {
					t.Fatalf("a click without a receipt: %+v", s)
				}
			case DoAsk:
				asks++
			case DoCompensate:
				compensations++
			}
		}
		count(w, s)
		var history []Event
		var codes []Code
		approved := false
		for range rapid.IntRange(0, 14).Draw(t, "length") {
			e, code := rapid.SampledFrom(Events).Draw(t, "event"), rapid.SampledFrom(Codes).Draw(t, "code")
			answered := func(of []Event) []Event {
				return slices.DeleteFunc(slices.Clone(of), func(e Event) bool { _, ok := table[s.Phase][e]; return !ok })
			}
			// Half of the events lead on, so that histories reach the late phases often.
			if on := answered([]Event{Landed, Approved, Ready, Clicked, Verified, ChecksFailed, Compensated}); len(on) > 0 && rapid.Bool().Draw(t, "leads on") {
				e = rapid.SampledFrom(on).Draw(t, "next event")
			} else if all := answered(Events); len(all) > 0 && rapid.Bool().Draw(t, "is answered") {
				e = rapid.SampledFrom(all).Draw(t, "answered event")
			}
			history, codes = append(history, e), append(codes, code)
			next, w, changed := Next(s, e, code)
			if !changed && (next != s || w != DoNothing) {
				t.Fatalf("%s changes %+v without saying so", e, s)
			}
			if s.Phase == Ended && changed {
				t.Fatalf("%s moves an ended run: %+v", e, next)
			}
			if s.Receipt && (next.Phase == Preparing || next.Phase == Waiting || next.Phase == Repreparing || next.Phase == Reading || w == DoCommit || w == DoPrepare || w == DoReprepare || w == DoRead) {
				t.Fatalf("driven again after the receipt: %s %+v", e, next)
			}
			if s.Receipt && (!next.Receipt || !next.HoldsKey()) {
				t.Fatalf("a receipt is lost: %+v", next)
			}
			if s.Phase == Waiting && e == Approved && changed {
				approved = true
			}
			count(w, next)
			s = next
		}
		if commits > 1 || compensations > 1 || asks > 1 {
			t.Fatalf("%v: %d clicks, %d approvals, %d compensations", history, commits, asks, compensations)
		}
		if commits == 1 && !approved {
			t.Fatalf("%v: a click without an approval", history)
		}
		if compensations == 1 && !slices.Contains(history, ChecksFailed) {
			t.Fatalf("%v: compensation without a failed check", history)
		}
		if (s.Outcome() == OutcomeNone) != (s.Phase != Ended) {
			t.Fatalf("%+v hears %q", s, s.Outcome())
		}
		status, hears, clicks, holds := told(p, history, codes)
		if s.Status != status || s.Outcome() != hears || commits != clicks || s.HoldsKey() != holds {
			t.Fatalf("%+v %v %v\nthe table says %s %q %d %v\nthe sentences %s %q %d %v", p, history, codes, s.Status, s.Outcome(), commits, s.HoldsKey(), status, hears, clicks, holds)
		}
		saw[string(s.Status)]++
		saw["clicks"] += commits
	}
	rapid.Check(t, func(t *rapid.T) {
		for range 60 {
			one(t)
		}
	})
	for _, s := range Statuses {
		if saw[string(s)] == 0 {
			t.Errorf("no history reached %s: the check is void", s)
		}
	}
	if saw["clicks"] == 0 {
		t.Error("no history clicked: the check is void")
	}
}

// Every phase has an answer to a crash, and after the crash a run still ends: from each state that
// histories reach, some events lead to the end.
func TestEveryPhaseAnswersACrash(t *testing.T) {
	t.Parallel()
	for _, p := range RunPhases {
		m, ok := table[p][Crashed]
		if !ok && p != Ended {
			t.Errorf("%s has no answer to a crash", p)
		}
		if ok && (p == Committing || p == Committed || p == Compensating) && m.phase != Ended {
			t.Errorf("%s goes on after a crash", p)
		}
		if ok && m.work == DoCommit {
			t.Errorf("%s clicks after a crash", p)
		}
	}
	// All reachable states, by breadth.
	for _, plan := range plans {
		first, _ := Begin(plan)
		seen, queue := map[State]bool{first: true}, []State{first}
		for len(queue) > 0 {
			s := queue[0]
			queue = queue[1:]
			ends := s.Phase == Ended
			for _, e := range Events {
				for _, code := range Codes {
					next, _, changed := Next(s, e, code)
					ends = ends || next.Phase == Ended
					if changed && !seen[next] {
						seen[next] = true
						queue = append(queue, next)
					}
				}
			}
			if !ends {
				t.Errorf("%+v: no event ends %+v", plan, s)
			}
			if !slices.Contains(Statuses, s.Status) || s.Code != "" && !slices.Contains(Codes, s.Code) {
				t.Errorf("%+v is no status of the specification", s)
			}
		}
		if n := len(seen); n < 3 || n > 60 {
			t.Errorf("%+v reaches %d states", plan, n)
		}
	}
}

func ExampleNext() {
	s, work := Begin(Plan{Mode: Run, Gate: GateAtCommit, Commits: true})
	fmt.Printf("%s, owes %q\n", s.Phase, work)
	for _, e := range []Event{Landed, Approved, Ready, Crashed, Approved} {
		s, work, _ = Next(s, e, "")
		fmt.Printf("%s: %s, %s, owes %q\n", e, s.Phase, s.Status, work)
	}
	fmt.Println(s.Outcome(), s.Again())
	// Output:
	// preparing, owes "prepare"
	// landed: waiting, prepared, owes "ask"
	// approved: repreparing, running, owes "reprepare"
	// ready: committing, committing, owes "commit"
	// crashed: ended, committing, owes ""
	// approved: ended, committing, owes ""
	// unknown_outcome unknown
}
