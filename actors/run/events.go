package run

import (
	"time"

	"agentsvc/persistence/journal"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/webhook"
)

// The webhook events of a run, in the commits that they report (service.md, Events,
// Webhooks).

func (k *kind) hears(t id.TenantID) bool { return k.cfg.Hears != nil && k.cfg.Hears(t) }

// reportEnd reports the end of a run that is no child run.
func (k *kind) reportEnd(w *journal.Commit, s *State, now time.Time) {
	if s.Parent != nil || !k.hears(s.Tenant) {
		return
	}
	agent := s.AgentID.String()
	data := webhook.RunEnded{
		RunID: s.ID.String(), AgentID: &agent, Status: string(s.Status), Output: s.Output,
		TokensIn: s.TokensIn, TokensOut: s.TokensOut, CostUSD: s.CostUSD, FinishedAt: journal.Kept(*s.FinishedAt),
	}
	if s.ThreadID != nil {
		thread := s.ThreadID.String()
		data.ThreadID = &thread
	}
	t := webhook.RunCompleted
	if s.Error != nil {
		t, data.Code, data.Message = webhook.RunFailed, string(s.Error.Code), s.Error.Message
	}
	w.Events = append(w.Events, journal.NewEvent(s.ID.Shard(), t, data, now))
}

// reportAsked reports the opening of an approval.
func (k *kind) reportAsked(w *journal.Commit, s *State, c *Call, now time.Time) {
	if k.hears(s.Tenant) {
		w.Events = append(w.Events, journal.NewEvent(s.ID.Shard(), webhook.ApprovalRequested, k.approvalData(s, c), now))
	}
}

// reportWithdrawn reports the approvals that the end of the run cancels.
func (k *kind) reportWithdrawn(w *journal.Commit, s *State, pending []*Call, m any, now time.Time) {
	if !k.hears(s.Tenant) {
		return
	}
	by := msg.System // of a run that ended by itself
	if cancel, ok := m.(msg.CancelRun); ok {
		by = cancel.By.Actor
	}
	for _, c := range pending {
		data := webhook.Decided{Approval: k.approvalData(s, c), Status: string(lifecycle.ApprovalCancelled), DecidedBy: by, DecidedAt: journal.Kept(now)}
		w.Events = append(w.Events, journal.NewEvent(s.ID.Shard(), webhook.ApprovalDecided, data, now))
	}
}

// approvalData returns the data of an event about an open approval.
func (k *kind) approvalData(s *State, c *Call) webhook.Approval {
	return webhook.Approval{
		ApprovalID: c.Plan.Approval.String(), RunID: s.ID.String(), Tool: c.Plan.Tool, Risk: string(c.Plan.Terms.Risk),
		AssigneeRole: string(c.Approval.Assignee), ExpiresAt: journal.Kept(c.Approval.ExpiresAt),
		URL: api.ApprovalURL(k.cfg.PublicURL, *c.Plan.Approval),
	}
}
