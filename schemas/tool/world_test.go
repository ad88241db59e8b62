package tool

import (
	"encoding/binary"
	"encoding/json"
	"time"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// uid is a UUID that a test can tell from others; a later n is the newer id.
func uid(kind byte, n int) id.UUID {
	var u id.UUID
	u[0] = kind
	binary.BigEndian.PutUint64(u[8:], uint64(n))
	return u
}

func serverID(n int) id.ServerID   { return id.ServerID{UUID: uid('s', n)} }
func grantID(n int) id.GrantID     { return id.GrantID{UUID: uid('g', n)} }
func connID(n int) id.ConnectionID { return id.ConnectionID{UUID: uid('c', n)} }
func nodeID(n int) id.NodeID       { return id.NodeID{UUID: uid('n', n)} }
func agentID(n int) id.AgentID     { return id.AgentID{UUID: uid('a', n)} }
func policyID(n int) id.PolicyID   { return id.PolicyID{UUID: uid('p', n)} }
func skillID(n int) id.SkillID     { return id.SkillID{UUID: uid('k', n)} }
func ptr[T any](v T) *T            { return &v }
func day(n int) time.Time          { return time.Date(2026, 1, 1+n, 0, 0, 0, 0, time.UTC) }
func mcp(server, name string) Spec { return Spec{Source: MCP, Owner: server, Name: name} }
func builtin(name string) Spec     { return Spec{Source: Builtin, Name: name} }
func skill(n int, slug, op string) Spec {
	return Spec{Source: BrowserSkill, Owner: slug, Name: op, Skill: ptr(skillID(n))}
}

func schema(s string) json.RawMessage { return json.RawMessage(s) }

// house is a tenant in which agent 1 sits on org node 1, below 2, below 3; the
// server shop (1) takes a bearer token, open (2) takes none.
type house struct {
	Access
	agent.Manifest
	Options
}

func newHouse() *house {
	return &house{
		Access: Access{
			Agent: agentID(1),
			Chain: []id.NodeID{nodeID(1), nodeID(2), nodeID(3)},
			Servers: []Server{
				{ID: serverID(1), Slug: "shop", AuthKind: AuthBearer, Enabled: true},
				{ID: serverID(2), Slug: "open", AuthKind: AuthNone, Enabled: true},
			},
			Connections: []Connection{{ID: connID(1), Server: serverID(1), CreatedAt: day(1)}},
		},
		Manifest: agent.Manifest{Tools: agent.Tools{
			Builtin: []string{"kb.search"},
			MCP:     []agent.MCPTools{{Server: "shop", Allow: []string{"*"}}, {Server: "open", Allow: []string{"*"}}},
		}},
	}
}

// grant adds an allow of the shop's tools to the whole tenant, as changed by edit.
func (h *house) grant(n int, pattern string, edit ...func(*Grant)) {
	g := Grant{ID: grantID(n), Source: MCP, Server: ptr(serverID(1)), Pattern: pattern, Effect: Allow, CreatedAt: day(1)}
	for _, e := range edit {
		e(&g)
	}
	h.Grants = append(h.Grants, g)
}

func denies(g *Grant)                { g.Effect = Deny }
func toAgent(n int) func(*Grant)     { return func(g *Grant) { g.Agent = ptr(agentID(n)) } }
func toNode(n int) func(*Grant)      { return func(g *Grant) { g.Node = ptr(nodeID(n)) } }
func made(n int) func(*Grant)        { return func(g *Grant) { g.CreatedAt = day(n) } }
func pins(n int) func(*Grant)        { return func(g *Grant) { g.Connection = ptr(connID(n)) } }
func ofServer(n int) func(*Grant)    { return func(g *Grant) { g.Server = ptr(serverID(n)) } }
func ofAnyServer(g *Grant)           { g.Server = nil }
func ofBuiltin(g *Grant)             { g.Source, g.Server = Builtin, nil }
func ofSource(s Source) func(*Grant) { return func(g *Grant) { g.Source, g.Server = s, nil } }
func ofSkill(n int) func(*Grant) {
	return func(g *Grant) { g.Source, g.Server, g.Skill = BrowserSkill, nil, ptr(skillID(n)) }
}

// policy adds a tenant-wide policy about any source that asks for two approvals.
func (h *house) policy(n int, pattern string, edit ...func(*Policy)) {
	p := Policy{ID: policyID(n), Name: "policy " + string(rune('0'+n)), Pattern: pattern, Risk: lifecycle.RiskHigh, Required: 2, Role: lifecycle.RoleAdmin, SLAMinutes: 60, CreatedAt: day(1)}
	for _, e := range edit {
		e(&p)
	}
	h.Policies = append(h.Policies, p)
}

func (h *house) resolve(s Spec) Resolution { return Resolve(&h.Access, &h.Manifest, h.Options, s) }
