package skillrun

import (
	"encoding/json"

	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/skill"
)

// A run accepts msg.StartSkill, msg.CommitSkill, msg.LookSkill, msg.WithdrawSkill, msg.RepeatSkill and
// durable.TimerDue. It replies msg.SkillStands.

// Results of effects. A nil report stands for one that was lost.
type (
	// Prepared is how Prepare ended.
	Prepared struct{ Report *skill.Report }
	// Reprepared is how Reprepare ended. If its event is Ready, the page is open and waits for
	// Commit.
	Reprepared struct{ Report *skill.Report }
	// ReadDone is how Read ended.
	ReadDone struct{ Report *skill.Report }
	// Clicked says that the commit was answered; the checks follow. It may be lost: Committed
	// holds the same report.
	Clicked struct {
		Report *skill.Report `json:"report"`
	}
	// Committed is how Commit ended. Verify is nil if the click was not answered well.
	Committed struct{ Click, Verify *skill.Report }
	// Compensated is how Compensate ended.
	Compensated struct{ Report *skill.Report }
	// Unfit says that the skill may not run any more: it is deleted, disabled, taught anew, or
	// no longer granted.
	Unfit struct{ Why string }
	// CallerEnded says that the calling run had ended before the run began.
	CallerEnded struct{}
)

// Questions and their answers.
type (
	// CheckApproval asks whether people approved the arguments of a CommitSkill.
	CheckApproval struct{ msg.CommitSkill }
	// Approvable answers it. Values are those to commit.
	Approvable struct {
		Approved bool
		Why      string // it is not approved: for people
		Unfit    string // the skill may not run any more
		Taken    bool   // another run holds the key of the values
		Values   json.RawMessage
		Key      string // of the values
	}
	// Look asks what became of the approval and of the agent's run.
	Look struct{}
	// Seen answers it.
	Seen struct {
		Approval  lifecycle.ApprovalStatus // empty: there is none
		RunEnded  bool
		CallEnded bool // no approval opened: a run is told to look before that only when its call has ended
	}
)

// Facts of a decision.
type (
	// Began is a run that was accepted.
	Began struct{}
	// Moved is a run whose phase, status or record changed.
	Moved struct{}
	// Answered is a commit that the site answered. It is audited, also where the run ends in the same decision.
	Answered struct{}
	// Claimed is a row that this activation owns now.
	Claimed struct{}
	// TimerDone is the timer look, which has nothing more to do.
	TimerDone struct{}
)

// Effects.
type (
	// Prepare fills the form up to the commit step.
	Prepare struct{ Of *State }
	// Reprepare fills it again with the approved values, in a fresh session that stays open.
	Reprepare struct{ Of *State }
	// Read runs a skill without a commit step.
	Read struct{ Of *State }
	// Commit clicks once, and runs what follows: later steps, checks, result fields.
	Commit struct{ Of *State }
	// Compensate runs the compensation steps in a fresh session.
	Compensate struct{ Of *State }
)

const (
	keyPrepare    = "prepare"
	keyReprepare  = "reprepare"
	keyRead       = "read"
	keyCommit     = "commit"
	keyCompensate = "compensate"
)

// Key returns the same key in each activation.
func (Prepare) Key() string { return keyPrepare }

// Key returns the same key in each activation.
func (Reprepare) Key() string { return keyReprepare }

// Key returns the same key in each activation.
func (Read) Key() string { return keyRead }

// Key returns the same key from the receipt to the last check.
func (Commit) Key() string { return keyCommit }

// Key returns the same key in each activation.
func (Compensate) Key() string { return keyCompensate }

// Repeatable: a run that knows of its click changes nothing.
func (Clicked) Repeatable() {}
