package feed

// ApprovalChecks are the invariants of approvals.
var ApprovalChecks = []Check{
	{"waiting steps without an approval", queries.Get("doctor_waiting_step_without_approval")},
	{"pending approvals whose run does not wait", queries.Get("doctor_pending_without_waiting_run")},
	{"pending approvals that do not expire", queries.Get("doctor_pending_without_expiry")},
}
