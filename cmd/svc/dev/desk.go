package dev

import (
	"context"
	"errors"
	"net/http"

	"agentsvc/cmd/svc/client"
	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/tool"
	"agentsvc/transport/mcp/demo"
)

// sampleServer is the slug of the demo tool server.
const sampleServer = "demo"

// openDesk serves the demo tool server of svc dev: an order desk in memory. Its token stays the
// same over restarts, and its port as long as it is free.
func openDesk(s *sample) (*local, error) {
	d, err := openLocal(s.DeskURL, demo.New(s.DeskToken).Handler())
	if err != nil {
		return nil, err
	}
	d.url += "/mcp"
	return d, nil
}

// makeTools registers the desk as the tenant's tool server: every tool is granted,
// and a refund by the sample agent needs an approval. A server that the tenant has removed stays removed.
func (s *sample) makeTools(ctx context.Context, view store.View, tx *store.Tx, url string) error {
	if s.ServerID != "" {
		return nil
	}
	servers, err := view.Servers(ctx, id.ServerID{}, store.All)
	if err != nil {
		return err
	}
	for _, there := range servers {
		if there.Slug == sampleServer { // the file was lost: the desk has another token now
			if err := tx.DeleteServer(ctx, there.ID); err != nil {
				return err
			}
		}
	}
	server, err := tx.CreateServer(ctx, &api.MCPServerCreate{Slug: sampleServer, Name: "Order desk (demo)", Transport: tool.HTTP, Endpoint: url, AuthKind: tool.AuthBearer})
	if err != nil {
		return err
	}
	connection, err := tx.CreateConnection(ctx, &api.ConnectionCreate{MCPServerID: server.ID, Name: "Demo token",
		Credentials: api.ConnectionCredentials{Token: &s.DeskToken}, CredentialMeta: api.Object(`{"label":"made by svc dev"}`)})
	if err != nil {
		return err
	}
	if _, err := tx.CreateGrant(ctx, &api.ToolGrantCreate{Source: api.ToolSource(tool.MCP), MCPServerID: &server.ID, ToolPattern: "orders.*", Effect: tool.Allow}); err != nil {
		return err
	}
	s.ServerID, s.ConnectionID, s.DeskURL = server.ID.String(), connection.ID.String(), url
	policies, err := view.Policies(ctx, id.PolicyID{}, store.All)
	if err != nil {
		return err
	}
	const refunds = sampleServer + ".orders.refund"
	for _, p := range policies {
		if p.ToolPattern == refunds {
			return nil
		}
	}
	risk := lifecycle.RiskHigh
	u, err := id.Parse(s.AgentID)
	if err != nil {
		return err
	}
	// Of this agent only: the sample workflow has a gate of its own.
	agent := id.AgentID{UUID: u}
	_, err = tx.CreatePolicy(ctx, &api.ApprovalPolicyCreate{Name: "Refunds are decided by people", ToolPattern: refunds, AgentID: &agent, Risk: &risk})
	return err
}

// moveDesk gives the service the desk's new address, if its former port was taken.
func (s *sample) moveDesk(ctx context.Context, api *client.Client, url string) error {
	err := api.Patient(ctx, http.MethodPatch, "/v1/mcp-servers/"+s.ServerID, map[string]any{"endpoint": url}, nil)
	if err == nil { // another address drops the credential
		err = api.Patient(ctx, http.MethodPatch, "/v1/connections/"+s.ConnectionID, map[string]any{"credentials": map[string]any{"token": s.DeskToken}}, nil)
	}
	var gone *client.APIError
	if errors.As(err, &gone) && gone.Status == http.StatusNotFound {
		return nil // the tenant removed it: it stays removed
	}
	return err
}
