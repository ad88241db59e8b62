package feed

// WorkflowChecks are the invariants of workflow runs.
var WorkflowChecks = []Check{
	{"workflow runs that owe nothing and wait for nothing", queries.Get("doctor_workflow_idle")},
	{"steps of workflow runs that nothing ends", queries.Get("doctor_workflow_step")},
	{"agents of workflow runs without a child run", queries.Get("doctor_workflow_agent")},
	{"child runs without a parent that waits for them", queries.Get("doctor_orphans")},
}
