package platform

import (
	"context"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

type createUser struct{ Body api.UserCreate }

type oneUser struct {
	ID id.UserID `path:"id"`
}

type patchUser struct {
	ID   id.UserID `path:"id"`
	Body api.UserPatch
}

type createLink struct {
	ID   id.UserID           `path:"id"`
	Body api.LoginLinkCreate `required:"false"`
}

type createNode struct{ Body api.OrgNodeCreate }

type oneNode struct {
	ID id.NodeID `path:"id"`
}

type patchNode struct {
	ID   id.NodeID `path:"id"`
	Body api.OrgNodePatch
}

type oneManager struct {
	ID   id.NodeID `path:"id"`
	User id.UserID `path:"user_id"`
}

func (p *Platform) userRoutes(t *edge.Table) {
	const tag = "Users"
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/users", ID: "listUsers", Answer: listed(sampleUser),
		Summary: "List users", Tag: tag, Role: lifecycle.RoleAdmin}, p.listUsers)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/users", ID: "createUser", Answer: sampleUser,
		Summary:     "Add a user",
		Description: "Only an owner adds an owner; an API key is not an owner.", Tag: tag, Role: lifecycle.RoleAdmin, Status: 201, Idempotent: true,
		Codes:   []problem.Code{problem.CodeEmailTaken},
		Example: map[string]any{"email": "kim@example.com", "name": "Kim", "role": "member", "password": "correct horse battery"}}, p.createUser)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/users/{id}", ID: "getUser", Answer: sampleUser,
		Summary: "Read a user", Tag: tag, Role: lifecycle.RoleAdmin}, p.getUser)
	edge.Handle(t, edge.Route{Method: "PATCH", Path: "/v1/users/{id}", ID: "updateUser", Answer: sampleUser,
		Summary: "Change a user",
		Description: "A new role takes effect at once, a new password ends the user's sessions. Only an owner changes an owner or makes one; an API key is not an owner. " +
			"The last owner must stay an owner.", Tag: tag, Role: lifecycle.RoleAdmin,
		Codes: []problem.Code{problem.CodeEmailTaken, problem.CodeLastOwner}, Example: map[string]any{"role": "admin"}}, p.updateUser)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/users/{id}", ID: "deleteUser", Summary: "Remove a user",
		Description: "Ends the user's sessions at once. Only an owner removes an owner, and never the last one.", Tag: tag, Role: lifecycle.RoleAdmin,
		Codes: []problem.Code{problem.CodeLastOwner}}, p.deleteUser)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/users/{id}/login-link", ID: "createLoginLink", Answer: sampleLoginLink,
		Summary: "Make a one-time login link of a user",
		Description: "Whoever opens it within 15 minutes and presses its button is signed in as the user, once. For sessions: a key is FORBIDDEN. An admin makes links of members, an owner of everybody. " +
			"It ends when the user's password or role changes. next is a path of the console to which it leads.", Tag: tag, Role: lifecycle.RoleAdmin, Status: 201, Idempotent: true,
		Example: map[string]any{"next": "/console/approvals/" + sampleApprovalID.String()}}, p.createLink)
}

func (p *Platform) createLink(ctx context.Context, c *edge.Caller, in *createLink) (*api.LoginLink, error) {
	if c.User.IsZero() {
		return nil, problem.New(problem.CodeForbidden, "Login links of people are made by people: this is for console sessions, not for keys.")
	}
	if in.Body.Next != "" {
		if err := api.CheckNext(in.Body.Next); err != nil {
			return nil, err
		}
	}
	return change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.LoginLink, error) {
		token, expires, err := tx.CreateLinkFor(ctx, in.ID, c.Role)
		if err != nil {
			return nil, err
		}
		return &api.LoginLink{URL: store.LinkURL(p.PublicURL, token, in.Body.Next), ExpiresAt: expires}, nil
	})
}

func (p *Platform) listUsers(ctx context.Context, c *edge.Caller, in *api.Page) (*api.List[api.User], error) {
	return list(ctx, p.Store.View(c.Tenant), *in, "users", store.View.Users, func(u api.User) id.UserID { return u.ID })
}

func (p *Platform) createUser(ctx context.Context, c *edge.Caller, in *createUser) (*api.User, error) {
	if err := store.MayMake(c.Role, in.Body.Role); err != nil {
		return nil, err
	}
	hash, err := p.Sessions.hash(ctx, c.Tenant.String(), in.Body.Password)
	if err != nil {
		return nil, err
	}
	return change(ctx, p, c, with1((*store.Tx).CreateUser, store.NewUser{Email: in.Body.Email, Name: in.Body.Name, Role: in.Body.Role, PasswordHash: hash}))
}

func (p *Platform) getUser(ctx context.Context, c *edge.Caller, in *oneUser) (*api.User, error) {
	return p.Store.View(c.Tenant).User(ctx, in.ID)
}

func (p *Platform) updateUser(ctx context.Context, c *edge.Caller, in *patchUser) (*api.User, error) {
	b := &in.Body
	hash, err := p.Sessions.hash(ctx, c.Tenant.String(), b.Password)
	if err != nil {
		return nil, err
	}
	out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.User, error) {
		return tx.UpdateUser(ctx, in.ID, c.Role, store.UserChange{Email: b.Email, Name: b.Name, Role: b.Role, PasswordHash: hash})
	})
	r := msg.Revoked{What: msg.ChangedUser, Tenant: c.Tenant, User: in.ID}
	switch {
	case hash != nil:
		r.What = msg.RevokedUser
	case b.Role == nil:
		return out, err
	}
	return told(ctx, p, r, out, err)
}

func (p *Platform) deleteUser(ctx context.Context, c *edge.Caller, in *oneUser) (*edge.Empty, error) {
	out, err := change(ctx, p, c, none2((*store.Tx).DeleteUser, in.ID, c.Role))
	return removed(ctx, p, msg.Revoked{What: msg.RevokedUser, Tenant: c.Tenant, User: in.ID}, out, err)
}

func (p *Platform) nodeRoutes(t *edge.Table) {
	const tag = "Org nodes"
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/org-nodes", ID: "listOrgNodes", Answer: listed(sampleNode),
		Summary: "List org nodes", Tag: tag, Role: lifecycle.RoleAdmin}, p.listNodes)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/org-nodes", ID: "createOrgNode", Answer: sampleNode,
		Summary: "Add an org node", Tag: tag, Role: lifecycle.RoleAdmin, Status: 201, Idempotent: true,
		Example: map[string]any{"name": "Refunds", "parent_id": sample(13)}}, p.createNode)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/org-nodes/{id}", ID: "getOrgNode", Answer: sampleNode,
		Summary: "Read an org node", Tag: tag, Role: lifecycle.RoleAdmin}, p.getNode)
	edge.Handle(t, edge.Route{Method: "PATCH", Path: "/v1/org-nodes/{id}", ID: "updateOrgNode", Answer: sampleNode,
		Summary:     "Change an org node",
		Description: "A parent that is the node itself or below it answers VALIDATION.", Tag: tag, Role: lifecycle.RoleAdmin,
		Example: map[string]any{"parent_id": nil}}, p.updateNode)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/org-nodes/{id}", ID: "deleteOrgNode", Summary: "Remove an org node",
		Description: "IN_USE while nodes, agents, connections or grants refer to it.", Tag: tag, Role: lifecycle.RoleAdmin,
		Codes: []problem.Code{problem.CodeInUse}}, p.deleteNode)
	edge.Handle(t, edge.Route{Method: "PUT", Path: "/v1/org-nodes/{id}/managers/{user_id}", ID: "addOrgNodeManager", Summary: "Make a user a manager",
		Description: "For the node and all nodes below it. Repeating it changes nothing.", Tag: tag, Role: lifecycle.RoleAdmin}, p.addManager)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/org-nodes/{id}/managers/{user_id}", ID: "removeOrgNodeManager", Summary: "Remove a manager",
		Description: "Has no effect if the user is not a manager.", Tag: tag, Role: lifecycle.RoleAdmin}, p.removeManager)
}

func (p *Platform) listNodes(ctx context.Context, c *edge.Caller, in *api.Page) (*api.List[api.OrgNode], error) {
	return list(ctx, p.Store.View(c.Tenant), *in, "org-nodes", store.View.Nodes, func(n api.OrgNode) id.NodeID { return n.ID })
}

func (p *Platform) createNode(ctx context.Context, c *edge.Caller, in *createNode) (*api.OrgNode, error) {
	return change(ctx, p, c, with1((*store.Tx).CreateNode, &in.Body))
}

func (p *Platform) getNode(ctx context.Context, c *edge.Caller, in *oneNode) (*api.OrgNode, error) {
	return p.Store.View(c.Tenant).Node(ctx, in.ID)
}

func (p *Platform) updateNode(ctx context.Context, c *edge.Caller, in *patchNode) (*api.OrgNode, error) {
	out, err := change(ctx, p, c, with2((*store.Tx).UpdateNode, in.ID, &in.Body))
	if !in.Body.ParentID.Set {
		return out, err
	}
	return told(ctx, p, access(c), out, err)
}

func (p *Platform) deleteNode(ctx context.Context, c *edge.Caller, in *oneNode) (*edge.Empty, error) {
	return change(ctx, p, c, none1((*store.Tx).DeleteNode, in.ID))
}

func (p *Platform) addManager(ctx context.Context, c *edge.Caller, in *oneManager) (*edge.Empty, error) {
	return change(ctx, p, c, none2((*store.Tx).AddManager, in.ID, in.User))
}

func (p *Platform) removeManager(ctx context.Context, c *edge.Caller, in *oneManager) (*edge.Empty, error) {
	return change(ctx, p, c, none2((*store.Tx).RemoveManager, in.ID, in.User))
}
