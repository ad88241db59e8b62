package tool_test

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/id"
	"agentsvc/schemas/redact"
	"agentsvc/schemas/tool"
)

var (
	shopID = id.ServerID{UUID: id.UUID{15: 1}}

	// The tools that the servers list.
	listed = []tool.Spec{
		{Source: tool.MCP, Owner: "shop", Name: "orders.get", ReadOnly: true},
		{Source: tool.MCP, Owner: "shop", Name: "orders.refund", Schema: json.RawMessage(`{
			"type": "object",
			"properties": {
				"order_id": {"type": "string"},
				"amount": {"type": "number", "exclusiveMinimum": 0},
				"idempotency_key": {"type": "string"}
			},
			"required": ["order_id", "amount"]
		}`)},
		{Source: tool.MCP, Owner: "shop", Name: "users.delete"},
	}

	// The tools that the agent requests.
	manifest = &agent.Manifest{Tools: agent.Tools{MCP: []agent.MCPTools{{Server: "shop", Allow: []string{"*"}}}}}

	// The tools that it gets: orders, and refunds after an approval.
	access = &tool.Access{
		Servers: []tool.Server{{ID: shopID, Slug: "shop", AuthKind: tool.AuthNone, Enabled: true}},
		Grants:  []tool.Grant{{ID: id.GrantID{UUID: id.UUID{15: 7}}, Source: tool.MCP, Server: &shopID, Pattern: "orders.*", Effect: tool.Allow}},
		Policies: []tool.Policy{{
			ID: id.PolicyID{UUID: id.UUID{15: 9}}, Name: "refunds", Pattern: "shop.orders.refund",
			Risk: "high", Required: 2, Role: "manager", SLAMinutes: 60, CreatedAt: time.Unix(0, 0),
		}},
	}
)

func Example() {
	offers := tool.Offers(access, manifest, tool.Options{}, listed)
	for _, o := range offers {
		fmt.Println(o.Qualified(), o.Verdict)
	}

	// A model asks for a call, by whichever name.
	o, ok := tool.Find(offers, "orders.refund")
	fmt.Println(ok, o.Terms.Required, o.Terms.Role, o.Terms.SLA())

	// The call gets its key, the same after every crash, and is checked.
	run, _ := id.Parse("0199a6b0-7c1e-7abc-8def-0123456789ab")
	args := tool.WithKey(o.Schema, json.RawMessage(`{"order_id":"A-1","amount":12.50}`), tool.Key(id.RunID{UUID: run}, 7))
	fmt.Println(string(args))
	fmt.Println(tool.Check(context.Background(), o.Schema, args))
	fmt.Println(tool.Check(context.Background(), o.Schema, json.RawMessage(`{"amount":0}`)))
	// Output:
	// shop.orders.get allow
	// shop.orders.refund gate
	// true 2 manager 1h0m0s
	// {"order_id":"A-1","amount":12.50,"idempotency_key":"466f52f1-4717-58f2-8fdf-745705bc5c6f"}
	// <nil>
	// amount: must be more than 0; order_id: is required
}

// The options of a message only tighten.
func ExampleResolve() {
	get := listed[0]
	fmt.Println(tool.Resolve(access, manifest, tool.Options{}, get).Verdict)
	fmt.Println(tool.Resolve(access, manifest, tool.Options{RequireApproval: true}, get).Verdict)
	fmt.Println(tool.Resolve(access, manifest, tool.Options{Tools: &[]string{}}, get).Why)
	fmt.Println(tool.Resolve(access, manifest, tool.Options{}, listed[2]).Why)
	// Output:
	// allow
	// gate
	// the message's tools leave out "shop.orders.get"
	// no grant allows "shop.users.delete"
}

func ExampleMatches() {
	refund := tool.Spec{Source: tool.MCP, Owner: "shop", Name: "orders.refund"}
	for _, p := range []string{"orders.refund", "shop.orders.*", "*", "refund", "Orders.*"} {
		fmt.Println(p, tool.Matches(p, refund))
	}
	// Output:
	// orders.refund true
	// shop.orders.* true
	// * true
	// refund false
	// Orders.* false
}

func ExampleExplain() {
	e := tool.Explain(access, manifest, tool.Options{}, listed, "orders.refund")
	fmt.Println(e.Why)
	for _, s := range e.Steps {
		if s.Decided {
			fmt.Println("-", s.What, s.Pattern, s.Note)
		}
	}
	// Output:
	// allowed by the grant 00000000-0000-0000-0000-000000000007 of "orders.*" to the whole tenant; the policy "refunds" asks for an approval
	// - manifest * allow of the tool server "shop"
	// - grant orders.* allow to the whole tenant: decides
	// - connection  the tool server takes no credential
	// - policy shop.orders.refund "refunds": asks for an approval
}

// An approver may edit a call without seeing its secrets.
func ExampleUnmask() {
	frozen := json.RawMessage(`{"amount":100,"card":{"pin":"1234"},"idempotency_key":"k"}`)
	shown := redact.JSON(frozen)
	edited := json.RawMessage(`{"amount":50,"card":{"pin":"[redacted]"}}`)
	runs, err := tool.Unmask(edited, frozen, shown)
	fmt.Println(string(tool.KeepKey(runs, frozen)), err)
	_, err = tool.Unmask(json.RawMessage(`{"amount":"[redacted]"}`), frozen, shown)
	fmt.Println(err)
	// Output:
	// {"amount":50,"card":{"pin":"1234"},"idempotency_key":"k"} <nil>
	// amount: there is no redacted value here that could be kept
}
