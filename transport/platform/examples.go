package platform

import (
	"encoding/json"
	"time"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lifecycle"
	"agentsvc/transport/edge"
)

// Examples for the OpenAPI document. They are values of the response types, so they cannot
// show a field that does not exist.

func sample(n byte) id.UUID {
	return id.UUID{0x01, 0xa1, 0xfe, 0x1a, 0xf0, 0xb8, 0x76, 0xf3, 0x94, 0x42, 0xf6, 0x22, 0x5b, 0xb3, 0xaf, n}
}

func ptr[T any](v T) *T { return &v }

var (
	sampleAgentID      = id.AgentID{UUID: sample(1)}
	sampleThreadID     = id.ThreadID{UUID: sample(2)}
	sampleRunID        = id.RunID{UUID: sample(3)}
	sampleMessageID    = id.MessageID{UUID: sample(4)}
	sampleKeyID        = id.KeyID{UUID: sample(5)}
	sampleAttachmentID = id.AttachmentID{UUID: sample(6)}
	sampleArtifactID   = id.ArtifactID{UUID: sample(15)}
	sampleApprovalID   = id.ApprovalID{UUID: sample(7)}

	sampleTime = time.Date(2026, 3, 2, 9, 30, 0, 0, time.UTC)
	sampleEnd  = sampleTime.Add(1400 * time.Millisecond)

	sampleDocument = json.RawMessage(`{"model":{"provider":"simulated","name":"sim"},"instructions":"You are a friendly assistant."}`)
	sampleOutput   = api.Value(`{"text":"It left our warehouse yesterday."}`)

	sampleTenant = api.Tenant{ID: id.TenantID{UUID: sample(8)}, Name: "Example Ltd", CreatedAt: sampleTime, UpdatedAt: sampleTime}
	sampleKey    = api.APIKey{ID: sampleKeyID, Name: "backend", Prefix: "svc_0b0l3kK0", LastUsedAt: &sampleEnd, CreatedAt: sampleTime, UpdatedAt: sampleTime}
	sampleAgent  = api.Agent{ID: sampleAgentID, Slug: "support", Name: "Support", Description: "Answers questions about orders.", Emoji: "🦉",
		PublishedVersion: ptr(1), LatestVersion: 1, CreatedAt: sampleTime, UpdatedAt: sampleTime}
	sampleVersion = api.AgentVersion{AgentID: sampleAgentID, Version: 1, Status: lifecycle.VersionPublished, Manifest: api.Manifest(sampleDocument),
		CreatedAt: sampleTime, PublishedAt: &sampleEnd}
	sampleProvider = api.ModelProvider{ID: id.ProviderID{UUID: sample(9)}, Slug: "local", Kind: "openai", BaseURL: "https://models.example.com/v1", HasCredentials: true,
		Prices: map[string]api.Price{"large": {InputPerMTok: 2.5, OutputPerMTok: 10}}, CreatedAt: sampleTime, UpdatedAt: sampleTime}
	sampleArtifact = api.Artifact{ID: sampleArtifactID, Kind: "xlsx", Name: "Revenue-by-region.xlsx",
		MediaType: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", SizeBytes: 7912, CreatedAt: sampleEnd}
	sampleAttachment = api.Attachment{ID: sampleAttachmentID, Name: "receipt.pdf", MediaType: "application/pdf", SizeBytes: 48213, CreatedAt: sampleTime}
	sampleThread     = api.Thread{ID: sampleThreadID, AgentID: sampleAgentID, Title: ptr("Order 1001"), CreatedBy: "apikey:" + sampleKeyID.String(),
		CreatedAt: sampleTime, UpdatedAt: sampleTime}
	sampleMessage = api.Message{ID: sampleMessageID, Role: "user", Content: "Where is my order?", Attachments: []api.Attachment{sampleAttachment}, Citations: []knowledge.Citation{},
		RunID: &sampleRunID, CreatedAt: sampleTime}
	sampleRun = api.Run{ID: sampleRunID, Status: lifecycle.RunSucceeded, AgentID: &sampleAgentID, AgentVersion: ptr(1), ThreadID: &sampleThreadID,
		Input: api.Value(`{"text":"Where is my order?"}`), Output: sampleOutput, Origin: api.Origin{Kind: lifecycle.OriginAPIKey, ID: sampleKeyID.UUID},
		TokensIn: 212, TokensOut: 9, CostUSD: 0.00062, CreatedAt: sampleTime, StartedAt: &sampleTime, FinishedAt: &sampleEnd}
	sampleStep = api.Step{Idx: 0, Kind: lifecycle.StepLLM, Name: "sim", Status: lifecycle.StepSucceeded, Input: api.Value(`{"provider":"simulated","model":"sim"}`),
		Output: sampleOutput, TokensIn: 212, TokensOut: 9, CostUSD: 0.00062, StartedAt: sampleTime, FinishedAt: &sampleEnd}

	sampleAgentAnswer   = api.AgentAnswer{Agent: &sampleAgent}
	samplePublished     = api.AgentPublished{Agent: &sampleAgent, Version: &sampleVersion, Warnings: []string{`handoffs[0]: there is no agent "returns"`}}
	sampleSecret        = "svc_0b0l3kK0LMdomncgi6e1WT_…"
	sampleThreadCreated = api.ThreadCreated{ID: sampleThreadID}
)

// listed returns a page with one example.
func listed[T any](v T) api.List[T] { return api.List[T]{Items: []T{v}} }

// describe adds the descriptions of request and response types.
func describe(t *edge.Table) {
	edge.Doc[api.Tenant](t, "A tenant.")
	edge.Doc[api.TenantPatch](t, "A change of a tenant; omitted fields stay.")
	edge.Doc[api.Residency](t, "Limits the hosts that browser skills may reach.")
	edge.Doc[api.User](t, "A person of the tenant.")
	edge.Doc[api.Me](t, "Who calls.")
	edge.Doc[api.APIKey](t, "An API key, without its secret.")
	edge.Doc[api.APIKeyCreated](t, "A new API key; the only response with its secret.")
	edge.Doc[api.APIKeyName](t, "The name of an API key.")
	edge.Doc[api.Agent](t, "An agent.")
	edge.Doc[api.AgentCreate](t, "An agent to create.")
	edge.Doc[api.AgentPatch](t, "A change of an agent; omitted fields stay.")
	edge.Doc[api.AgentAnswer](t, "An agent, with the version that the call made or published.")
	edge.Doc[api.AgentVersion](t, "One version of an agent.")
	edge.Doc[api.AgentVersionCreate](t, "A version to create.")
	edge.Doc[api.AgentPublished](t, "An agent, the version that was published, and warnings.")
	edge.Doc[api.AgentVersionAnswer](t, "A version.")
	edge.Doc[api.ModelProvider](t, "A model provider, without its credentials.")
	edge.Doc[api.ModelProviderUpdated](t, "A model provider as it is now, and whether it lost its credentials.")
	edge.Doc[api.ModelProviderCreate](t, "A model provider to create.")
	edge.Doc[api.ModelProviderPatch](t, "A change of a model provider; omitted fields stay.")
	edge.Doc[api.ProviderCredentials](t, "Credentials of a model provider.")
	edge.Doc[api.Price](t, "US dollars for a million tokens.")
	edge.Doc[api.Attachment](t, "A stored file.")
	edge.Doc[api.Artifact](t, "A file that a run made.")
	edge.Doc[api.Whole[api.Artifact]](t, "The files that a run made: all of them, or a page.")
	edge.Doc[api.Thread](t, "A conversation with an agent.")
	edge.Doc[api.ThreadCreate](t, "A conversation to start.")
	edge.Doc[api.ThreadCreated](t, "A new conversation.")
	edge.Doc[api.Message](t, "A message of a thread.")
	edge.Doc[api.MessagePost](t, "A message to send. Its options only tighten what the agent may do.")
	edge.Doc[api.MessagePosted](t, "A message that was accepted, and the run that answers it.")
	edge.Doc[api.Run](t, "A run of an agent.")
	edge.Doc[api.RunStart](t, "The input of a one-off run.")
	edge.Doc[api.RunStarted](t, "A run that was accepted.")
	edge.Doc[api.RunStatus](t, "A run and its status.")
	edge.Doc[api.RunError](t, "Why a run failed or was cancelled.")
	edge.Doc[api.RunAnswer](t, "A run with its steps.")
	edge.Doc[api.Origin](t, "What started a run.")
	edge.Doc[api.Step](t, "A persisted step of a run.")
	edge.Doc[api.StepAnswer](t, "One step of a run.")
	edge.Doc[api.List[api.Agent]](t, "A page of agents.")
	edge.Doc[api.List[api.AgentVersion]](t, "A page of versions.")
	edge.Doc[api.List[api.ModelProvider]](t, "A page of model providers.")
	edge.Doc[api.List[api.Thread]](t, "A page of threads.")
	edge.Doc[api.List[api.Run]](t, "A page of runs.")
	edge.Doc[api.Whole[api.APIKey]](t, "API keys: all of them, or a page.")
	edge.Doc[api.Whole[api.Message]](t, "Messages: the newest 1,000, or a page.")
	edge.Doc[agent.Manifest](t, "The definition of an agent. Unknown fields are refused.")
	edge.Doc[agent.Model](t, "Who answers.")
	edge.Doc[agent.Thinking](t, "Asks the model to think before it answers.")
	edge.Doc[agent.Tools](t, "The tools that the agent requests; grants decide which it gets.")
	edge.Doc[agent.MCPTools](t, "A tool server, and which of its tools.")
	edge.Doc[agent.BrowserSkillUse](t, "A browser skill, and which of its tools.")
	edge.Doc[agent.HITL](t, "The agent's own approval rules.")
	edge.Doc[agent.Rule](t, "Asks for an approval of the tool calls that match.")
	edge.Doc[agent.Guardrails](t, "Checks of the agent's answers.")
	edge.Doc[agent.Guardrail](t, "One check of the final answer.")
	edge.Doc[agent.Limits](t, "Limits of one run.")
	edge.Doc[agent.Memory](t, "How much of its thread an agent rereads.")
	edge.Doc[edge.Health](t, "The response of a healthy node.")
}
