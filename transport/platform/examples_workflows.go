package platform

import (
	"encoding/json"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/transport/edge"
)

var (
	sampleWorkflowID = id.WorkflowID{UUID: sample(0x40)}
	sampleDefinition = json.RawMessage(`{"nodes":[` +
		`{"id":"approve","type":"gate","title":"Refund {{input.amount}} for order {{input.order}}?"},` +
		`{"id":"refund","type":"tool","tool":"orders.refund","args":{"order":"{{input.order}}","amount":"{{input.amount}}"}}],` +
		`"edges":[{"from":"approve","to":"refund"}]}`)
	sampleWorkflow        = api.Workflow{ID: sampleWorkflowID, Slug: "refunds", Name: "Refunds", PublishedVersion: ptr(1), LatestVersion: 1, CreatedAt: sampleTime, UpdatedAt: sampleTime}
	sampleWorkflowVersion = api.WorkflowVersion{WorkflowID: sampleWorkflowID, Version: 1, Status: lifecycle.VersionPublished, Definition: api.Definition(sampleDefinition),
		CreatedAt: sampleTime, PublishedAt: &sampleEnd}
	sampleWorkflowAndVersions = api.WorkflowAndVersions{Workflow: &sampleWorkflow, Versions: []api.WorkflowVersion{sampleWorkflowVersion}}
	sampleWorkflowPublished   = api.WorkflowPublished{Workflow: &sampleWorkflow, Version: &sampleWorkflowVersion, Warnings: []string{`definition.nodes[1].tool: no grant allows "orders.refund"`}}
)

// describeWorkflows adds the descriptions of request and response types.
func describeWorkflows(t *edge.Table) {
	edge.Doc[api.Workflow](t, "A workflow.")
	edge.Doc[api.WorkflowCreate](t, "A workflow to create.")
	edge.Doc[api.WorkflowPatch](t, "A change of a workflow; omitted fields stay.")
	edge.Doc[api.WorkflowAnswer](t, "A workflow, with the version that the call made.")
	edge.Doc[api.WorkflowAndVersions](t, "A workflow with its versions.")
	edge.Doc[api.WorkflowVersion](t, "One version of a workflow.")
	edge.Doc[api.WorkflowVersionCreate](t, "A version to create.")
	edge.Doc[api.WorkflowPublished](t, "A workflow, the version that was published, and warnings.")
	edge.Doc[api.WorkflowVersionAnswer](t, "A version, and warnings.")
	edge.Doc[api.List[api.Workflow]](t, "A page of workflows.")
}
