package store

import (
	"context"
	"errors"
	"testing"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/tool"
)

// A patch waits for another one of the same object, and leaves what that one changed.
func TestPatchesLoseNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	hook := w.endpoint(t, w.a)
	robot := w.skill(t, "Portal")
	human := w.human(t, w.a, "lee@example.com", lifecycle.RoleMember, "x")
	node := w.orgNode(t, w.a, nil)
	root := w.orgNode(t, w.a, nil)
	var (
		agent      id.AgentID
		server     id.ServerID
		connection id.ConnectionID
		grant      id.GrantID
		flow       *api.Workflow
		provider   *api.ModelProvider
		policy     *api.ApprovalPolicy
		base       *api.KnowledgeBase
		source     *api.Source
		trigger    *api.TriggerCreated
		embed      *api.EmbedKeyCreated
		person     id.EndUserID
	)
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		var errs [12]error
		agent, errs[0] = tx.agent(ctx, nil)
		server, errs[1] = tx.server(ctx, "orders")
		connection, errs[2] = tx.connection(ctx, server, nil)
		grant, errs[3] = tx.grant(ctx, server, api.ToolGrantCreate{})
		flow, errs[4] = tx.CreateWorkflow(ctx, &api.WorkflowCreate{Name: "Flow"})
		provider, errs[5] = tx.CreateProvider(ctx, &api.ModelProviderCreate{Slug: "p", Kind: "openai", BaseURL: "https://x.example", Credentials: api.ProviderCredentials{APIKey: "k"}})
		policy, errs[6] = tx.CreatePolicy(ctx, &api.ApprovalPolicyCreate{Name: "Policy", ToolPattern: "*"})
		base, errs[7] = tx.CreateKnowledgeBase(ctx, &api.KnowledgeBaseCreate{Name: "Base"})
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
		source, errs[8] = tx.CreateSource(ctx, base.ID, &api.SourceCreate{Kind: lifecycle.SourceUpload, Name: "Source"})
		trigger, errs[9] = tx.CreateTrigger(ctx, &api.TriggerCreate{Name: "Hook", Kind: "hook", Target: api.TriggerTarget{AgentID: &agent}})
		embed, errs[10] = tx.CreateEmbedKey(ctx, &api.EmbedKeyCreate{AgentID: agent, Name: "Key", AllowedOrigins: []string{}})
		person, errs[11] = tx.UpsertEndUser(ctx, "customer", nil, nil, nil)
		return errors.Join(errs[:]...)
	})
	name, off := ptr("Renamed"), ptr(false)
	type patch = func(ctx context.Context, tx *Tx) error
	for _, c := range []struct {
		of         string
		one, other patch
		both       string // a condition on the row
		row        id.UUID
	}{
		{"tenants", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateTenant(ctx, &api.TenantPatch{Name: name}))
		},
			func(ctx context.Context, tx *Tx) error {
				return second(tx.UpdateTenant(ctx, &api.TenantPatch{Residency: api.Some(api.Residency{AllowedHosts: []string{"a.example"}})}))
			}, "name = 'Renamed' AND residency IS NOT NULL", w.a.UUID},
		{"agents", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateAgent(ctx, agent, &api.AgentPatch{Name: name}))
		},
			func(ctx context.Context, tx *Tx) error {
				return second(tx.UpdateAgent(ctx, agent, &api.AgentPatch{Emoji: ptr("🦉")}))
			},
			"name = 'Renamed' AND emoji = '🦉'", agent.UUID},
		{"workflows", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateWorkflow(ctx, flow.ID, &api.WorkflowPatch{Name: name}))
		},
			func(ctx context.Context, tx *Tx) error {
				return second(tx.UpdateWorkflow(ctx, flow.ID, &api.WorkflowPatch{Slug: ptr("other")}))
			},
			"name = 'Renamed' AND slug = 'other'", flow.ID.UUID},
		{"model_providers", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateProvider(ctx, provider.ID, &api.ModelProviderPatch{Slug: ptr("other")}))
		}, func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateProvider(ctx, provider.ID, &api.ModelProviderPatch{BaseURL: ptr("https://y.example")}))
		}, "slug = 'other' AND base_url = 'https://y.example'", provider.ID.UUID},
		{"mcp_servers", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateServer(ctx, server, &api.MCPServerPatch{Endpoint: ptr("https://moved.example")}))
		},
			func(ctx context.Context, tx *Tx) error {
				return second(tx.UpdateServer(ctx, server, &api.MCPServerPatch{AuthKind: ptr(tool.AuthAPIKey)}))
			},
			"endpoint = 'https://moved.example' AND auth_kind = 'api_key'", server.UUID},
		{"connections", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateConnection(ctx, connection, &api.ConnectionPatch{Name: name}))
		},
			func(ctx context.Context, tx *Tx) error {
				return second(tx.UpdateConnection(ctx, connection, &api.ConnectionPatch{NodeID: api.Some(node)}))
			},
			"name = 'Renamed' AND node_id IS NOT NULL", connection.UUID},
		{"tool_grants", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateGrant(ctx, grant, &api.ToolGrantPatch{ToolPattern: ptr("orders.*")}))
		},
			func(ctx context.Context, tx *Tx) error {
				return second(tx.UpdateGrant(ctx, grant, &api.ToolGrantPatch{Effect: ptr(tool.Deny)}))
			},
			"tool_pattern = 'orders.*' AND effect = 'deny'", grant.UUID},
		{"approval_policies", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdatePolicy(ctx, policy.ID, &api.ApprovalPolicyPatch{Name: name}))
		},
			func(ctx context.Context, tx *Tx) error {
				return second(tx.UpdatePolicy(ctx, policy.ID, &api.ApprovalPolicyPatch{Enabled: off}))
			},
			"name = 'Renamed' AND NOT enabled", policy.ID.UUID},
		{"knowledge_bases", func(ctx context.Context, tx *Tx) error {
			return third(tx.UpdateKnowledgeBase(ctx, base.ID, &api.KnowledgeBasePatch{Name: name}))
		},
			func(ctx context.Context, tx *Tx) error {
				return third(tx.UpdateKnowledgeBase(ctx, base.ID, &api.KnowledgeBasePatch{Description: ptr("About it.")}))
			}, "name = 'Renamed' AND description = 'About it.'", base.ID.UUID},
		{"knowledge_sources", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateSource(ctx, base.ID, source.ID, &api.SourcePatch{Name: name}))
		},
			func(ctx context.Context, tx *Tx) error {
				return second(tx.UpdateSource(ctx, base.ID, source.ID, &api.SourcePatch{Enabled: off}))
			},
			"name = 'Renamed' AND NOT enabled", source.ID.UUID},
		{"triggers", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateTrigger(ctx, trigger.ID, &api.TriggerPatch{Name: name}))
		},
			func(ctx context.Context, tx *Tx) error {
				return second(tx.UpdateTrigger(ctx, trigger.ID, &api.TriggerPatch{Enabled: off}))
			},
			"name = 'Renamed' AND NOT enabled", trigger.ID.UUID},
		{"webhooks", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateWebhook(ctx, hook.ID, &api.WebhookPatch{URL: ptr("https://moved.example/in")}))
		}, func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateWebhook(ctx, hook.ID, &api.WebhookPatch{Enabled: off}))
		},
			"url = 'https://moved.example/in' AND NOT enabled", hook.ID.UUID},
		{"browser_skills", func(ctx context.Context, tx *Tx) error {
			return third(tx.UpdateSkill(ctx, robot.ID, &api.SkillPatch{Name: name}, SkillSteps{}))
		},
			func(ctx context.Context, tx *Tx) error {
				return third(tx.UpdateSkill(ctx, robot.ID, &api.SkillPatch{Enabled: off}, SkillSteps{}))
			},
			"name = 'Renamed' AND NOT enabled", robot.ID.UUID},
		{"embed_keys", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateEmbedKey(ctx, embed.ID, &api.EmbedKeyPatch{Name: name}))
		},
			func(ctx context.Context, tx *Tx) error {
				return second(tx.UpdateEmbedKey(ctx, embed.ID, &api.EmbedKeyPatch{Enabled: off}))
			},
			"name = 'Renamed' AND NOT enabled", embed.ID.UUID},
		{"end_users", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateEndUser(ctx, person, &api.EndUserPatch{Name: api.Some("Renamed")}))
		},
			func(ctx context.Context, tx *Tx) error {
				return second(tx.UpdateEndUser(ctx, person, &api.EndUserPatch{Residency: api.Some("eu")}))
			},
			"name = 'Renamed' AND residency = 'eu'", person.UUID},
		{"users", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateUser(ctx, human, lifecycle.RoleOwner, UserChange{Name: name}))
		},
			func(ctx context.Context, tx *Tx) error {
				return second(tx.UpdateUser(ctx, human, lifecycle.RoleOwner, UserChange{Role: ptr(lifecycle.RoleAdmin)}))
			}, "name = 'Renamed' AND role = 'admin'", human.UUID},
		{"org_nodes", func(ctx context.Context, tx *Tx) error {
			return second(tx.UpdateNode(ctx, node, &api.OrgNodePatch{Name: name}))
		},
			func(ctx context.Context, tx *Tx) error {
				return second(tx.UpdateNode(ctx, node, &api.OrgNodePatch{ParentID: api.Some(root)}))
			},
			"name = 'Renamed' AND parent_id IS NOT NULL", node.UUID},
	} {
		other := make(chan error, 1)
		w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
			if err := c.one(ctx, tx); err != nil {
				return err
			}
			go func() { other <- w.try(t, w.a, c.other) }()
			pgtest.Blocked(t, w.db.Admin(t))
			return nil
		})
		if err := <-other; err != nil {
			t.Errorf("%s: %v", c.of, err)
		}
		if n := w.count(t, "SELECT count(*)::int FROM "+c.of+" WHERE id = $1 AND "+c.both, c.row); n != 1 {
			t.Errorf("%s: one of two patches is lost", c.of)
		}
	}
}
