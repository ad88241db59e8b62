// Package demo is a small tool server for `svc dev` and for tests: an order desk in memory
// that lists, looks up and refunds orders. It serves MCP over Streamable HTTP like a tenant's
// own server, follows the tool server contract (service.md), and keeps its data in memory
// only.
package demo

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// Order is one order of the desk.
type Order struct {
	ID       string  `json:"id"`
	Customer string  `json:"customer"`
	Status   string  `json:"status"`
	Items    []Item  `json:"items"`
	Total    float64 `json:"total"`
	Refunded float64 `json:"refunded"`
	Currency string  `json:"currency"`
}

// Item is a line of an order.
type Item struct {
	SKU      string  `json:"sku"`
	Quantity int     `json:"quantity"`
	Price    float64 `json:"price"`
}

// Refund is one refund that was paid out. A replay pays nothing.
type Refund struct {
	ID      string  `json:"refund_id"`
	OrderID string  `json:"order_id"`
	Amount  float64 `json:"amount"`
	Reason  string  `json:"reason"`
	Key     string  `json:"-"`
}

// maxKeys bounds the stored idempotency keys. Past it refunds are refused, because a dropped
// key could pay twice.
const maxKeys = 100_000

// Server is the order desk.
type Server struct {
	token string
	mcp   http.Handler

	mu      sync.Mutex // guards the fields below
	orders  []*Order
	refunds []Refund
	replays map[string]mcp.CallToolResult
}

// New returns a desk with a few orders. Callers send the token as a bearer token; an empty
// token admits every caller.
func New(token string) *Server {
	s := &Server{token: token, replays: map[string]mcp.CallToolResult{}, orders: []*Order{
		{ID: "1001", Customer: "Ada Lovelace", Status: "delivered", Items: []Item{{"lamp-brass", 1, 89}, {"bulb-e27", 4, 3.5}}, Total: 103, Currency: "EUR"},
		{ID: "1002", Customer: "Grace Hopper", Status: "shipped", Items: []Item{{"desk-oak", 1, 640}}, Total: 640, Currency: "EUR"},
		{ID: "1003", Customer: "Alan Turing", Status: "delivered", Items: []Item{{"chair-ash", 2, 120}}, Total: 240, Refunded: 120, Currency: "EUR"},
		{ID: "1004", Customer: "Mary Jackson", Status: "processing", Items: []Item{{"shelf-pine", 3, 45}}, Total: 135, Currency: "EUR"},
	}}
	m := server.NewMCPServer("Order desk", "1.0.0", server.WithToolCapabilities(false))
	m.AddTool(mcp.NewTool("orders.list",
		mcp.WithDescription("List the orders, optionally of one status or customer."),
		mcp.WithString("status", mcp.Description("Only orders of this status."), mcp.Enum("processing", "shipped", "delivered")),
		mcp.WithString("customer", mcp.Description("Only orders of this customer, by full name.")),
		mcp.WithSchemaAdditionalProperties(false),
		mcp.WithReadOnlyHintAnnotation(true), mcp.WithDestructiveHintAnnotation(false), mcp.WithOpenWorldHintAnnotation(false),
	), s.list)
	m.AddTool(mcp.NewTool("orders.get",
		mcp.WithDescription("Look up one order by its id."),
		mcp.WithString("order_id", mcp.Required(), mcp.MinLength(1)),
		mcp.WithSchemaAdditionalProperties(false),
		mcp.WithReadOnlyHintAnnotation(true), mcp.WithDestructiveHintAnnotation(false), mcp.WithOpenWorldHintAnnotation(false),
	), s.get)
	m.AddTool(mcp.NewTool("orders.refund",
		mcp.WithDescription("Pay back an amount of an order to the customer. Repeating a call with the same idempotency_key pays once and returns the same result."),
		mcp.WithString("order_id", mcp.Required(), mcp.MinLength(1)),
		mcp.WithNumber("amount", mcp.Required(), mcp.Description("In the order's currency."), func(p map[string]any) { p["exclusiveMinimum"] = 0 }),
		mcp.WithString("reason", mcp.Required(), mcp.MinLength(1), mcp.MaxLength(500)),
		mcp.WithString("idempotency_key", mcp.MaxLength(255)),
		mcp.WithSchemaAdditionalProperties(false),
		mcp.WithReadOnlyHintAnnotation(false), mcp.WithDestructiveHintAnnotation(true), mcp.WithOpenWorldHintAnnotation(false),
	), s.refund)
	s.mcp = server.NewStreamableHTTPServer(m, server.WithStateLess(true), server.WithStreamableHTTPLogger(slog.New(slog.DiscardHandler)))
	return s
}

// Handler serves MCP at every path.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown := []byte(r.Header.Get("Authorization"))
		if s.token != "" && subtle.ConstantTimeCompare(shown, []byte("Bearer "+s.token)) != 1 {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("WWW-Authenticate", "Bearer")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"unauthorized"}}`))
			return
		}
		s.mcp.ServeHTTP(w, r)
	})
}

// Refunds returns the refunds paid out, the oldest first.
func (s *Server) Refunds() []Refund {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.refunds)
}

func (s *Server) list(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status, customer := r.GetString("status", ""), r.GetString("customer", "")
	found := []*Order{}
	for _, o := range s.orders {
		if (status == "" || o.Status == status) && (customer == "" || o.Customer == customer) {
			found = append(found, o)
		}
	}
	return answer(map[string]any{"orders": found})
}

func (s *Server) get(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.find(r.GetString("order_id", ""))
	if o == nil {
		return failure("NOT_FOUND", "there is no such order")
	}
	return answer(o)
}

func (s *Server) find(id string) *Order {
	i := slices.IndexFunc(s.orders, func(o *Order) bool { return o.ID == id })
	if i < 0 {
		return nil
	}
	return s.orders[i]
}

// refund pays and stores the key under one lock, so that concurrent calls with one key pay
// once.
func (s *Server) refund(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := r.GetString("idempotency_key", "")
	if first, known := s.replays[k]; known {
		return &first, nil
	}
	if k != "" && len(s.replays) >= maxKeys {
		return failure("BUSY", "the desk holds too many refunds")
	}
	res, err := s.pay(r, k)
	if err == nil && k != "" {
		s.replays[k] = *res // a copy: the library changes each result that it sends
	}
	return res, err
}

func (s *Server) pay(r mcp.CallToolRequest, k string) (*mcp.CallToolResult, error) {
	o := s.find(r.GetString("order_id", ""))
	if o == nil {
		return failure("NOT_FOUND", "there is no such order")
	}
	amount := r.GetFloat("amount", 0)
	switch {
	case amount <= 0:
		return failure("INVALID_AMOUNT", "the amount must be greater than 0")
	case amount > o.Total-o.Refunded:
		return failure("AMOUNT_TOO_HIGH", fmt.Sprintf("%.2f %s of the order are left", o.Total-o.Refunded, o.Currency))
	}
	o.Refunded += amount
	paid := Refund{ID: fmt.Sprintf("R-%d", len(s.refunds)+1), OrderID: o.ID, Amount: amount, Reason: r.GetString("reason", ""), Key: k}
	s.refunds = append(s.refunds, paid)
	return answer(map[string]any{"refund_id": paid.ID, "order_id": o.ID, "amount": amount, "currency": o.Currency, "left": o.Total - o.Refunded})
}

func answer(v any) (*mcp.CallToolResult, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return mcp.NewToolResultText(string(b)), nil
}

// failure returns a business failure in the form of the tool server contract.
func failure(code, message string) (*mcp.CallToolResult, error) {
	b, err := json.Marshal(map[string]string{"error": code, "message": message})
	if err != nil {
		return nil, err
	}
	return mcp.NewToolResultError(string(b)), nil
}
