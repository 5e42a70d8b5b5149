package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
	"paymentd/internal/web"
)

// spec is openapi.yaml as kin-openapi reads it.
type spec struct {
	doc    *openapi3.T
	router routers.Router
}

func loadSpec(t *testing.T) *spec {
	t.Helper()
	s, err := readSpec()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// readSpec reads and validates openapi.yaml once: every test compares its answers with it.
var readSpec = sync.OnceValues(func() (*spec, error) {
	doc, err := openapi3.NewLoader().LoadFromData(openapi)
	if err != nil {
		return nil, err
	}
	if err := doc.Validate(context.Background(), openapi3.EnableExamplesValidation()); err != nil {
		return nil, err
	}
	doc.Servers = nil
	router, err := legacy.NewRouter(doc)
	if err != nil {
		return nil, err
	}
	return &spec{doc: doc, router: router}, nil
})

// check fails if the answer is not one that openapi.yaml describes: status, headers, media type, body.
func (s *spec) check(t *testing.T, r *http.Request, w *httptest.ResponseRecorder) {
	t.Helper()
	if err := s.validate(r, w); err != nil {
		t.Errorf("%s %s → %d is not as openapi.yaml says: %v\n%s", r.Method, r.URL, w.Code, err, w.Body)
	}
}

func (s *spec) validate(r *http.Request, w *httptest.ResponseRecorder) error {
	route, params, err := s.router.FindRoute(r)
	if err != nil {
		return err
	}
	described := route.Operation.Responses.Status(w.Code)
	if described == nil {
		return fmt.Errorf("status %d is not listed", w.Code)
	}
	// What every HTTP answer may have needs no description.
	listed := []string{"Content-Type", "Cache-Control", "X-Content-Type-Options", "Connection"}
	for name := range described.Value.Headers {
		listed = append(listed, http.CanonicalHeaderKey(name))
	}
	for name := range w.Header() {
		if !slices.Contains(listed, name) {
			return fmt.Errorf("header %s is not listed", name)
		}
	}
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route},
		Status:                 w.Code, Header: w.Header(),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	}
	input.SetBodyBytes(bytes.Clone(w.Body.Bytes()))
	return openapi3filter.ValidateResponse(r.Context(), input)
}

// TestSpecCheckCatches feeds wrong answers: a check that finds nothing is worthless.
func TestSpecCheckCatches(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		status int
		header http.Header
		body   string
		ok     bool
	}{
		{name: "right", status: 200, body: paidJSON, ok: true},
		{name: "status", status: 418, body: paidJSON},
		{name: "member too many", status: 200, body: strings.Replace(paidJSON, "{", `{"memberId":"m",`, 1)},
		{name: "member missing", status: 200, body: strings.Replace(paidJSON, `"failure":null,`, "", 1)},
		{name: "amount as text", status: 200, body: strings.Replace(paidJSON, "15000", `"15000"`, 1)},
		{name: "unknown status word", status: 200, body: strings.Replace(paidJSON, "PAID", "DONE", 1)},
		{name: "no request id", status: 200, header: http.Header{"X-Request-Id": nil}, body: paidJSON},
		{name: "unknown header", status: 200, header: http.Header{"X-Other": {"1"}}, body: paidJSON},
		{name: "code of another status", status: 404, header: http.Header{"Content-Type": {"application/problem+json"}},
			body: `{"type":"urn:paymentd:problem:busy","title":"x","status":404,"detail":"x","instance":"x","code":"busy"}`},
	}
	s := loadSpec(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := httptest.NewRecorder()
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("X-Request-Id", "req-1")
			maps.Copy(w.Header(), test.header)
			w.WriteHeader(test.status)
			_, _ = w.WriteString(test.body)
			err := s.validate(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/payments/order-1", nil), w)
			if (err == nil) != test.ok {
				t.Errorf("validate: %v", err)
			}
		})
	}
}

func TestSpecHasTheRoutes(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var served, described []string
	err := chi.Walk(f.Routes(), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		served = append(served, method+" "+route)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, item := range f.spec.doc.Paths.Map() {
		for method := range item.Operations() {
			described = append(described, method+" "+path)
		}
	}
	slices.Sort(served)
	slices.Sort(described)
	if diff := cmp.Diff(served, described); diff != "" {
		t.Errorf("openapi.yaml against the router (-served +described):\n%s", diff)
	}
}

// TestSpecHasTheCodes compares the codes that the operations list, each under its status, with what they can give.
func TestSpecHasTheCodes(t *testing.T) {
	t.Parallel()
	s := loadSpec(t)
	key := []payment.Code{payment.CodeUnauthorized, payment.CodeForbidden, payment.CodeInternal}
	body := []payment.Code{payment.CodeInvalidRequest, payment.CodeTooLarge, payment.CodeUnsupportedMediaType}
	want := map[string][]payment.Code{
		"confirmPayment": slices.Concat(key, body, []payment.Code{
			payment.CodeDeclined, payment.CodeOrderConflict, payment.CodePaymentCanceled, payment.CodeExpired,
			payment.CodeMemberRateLimited, payment.CodeGatewayMisconfigured, payment.CodePGUnavailable, payment.CodeBusy,
			payment.CodeDBUnavailable, payment.CodeDBFailed,
		}),
		"readPayment":  slices.Concat(key, []payment.Code{payment.CodeInvalidRequest, payment.CodeNotFound, payment.CodeDBUnavailable}),
		"readAttempts": slices.Concat(key, []payment.Code{payment.CodeNotFound, payment.CodeDBUnavailable}),
		"cancelPayment": slices.Concat(key, body, []payment.Code{
			payment.CodeNotFound, payment.CodeInProgress, payment.CodeCancelInProgress, payment.CodeNotCancelable,
			payment.CodePaymentCanceled, payment.CodeRefundAccountRequired, payment.CodeIdempotencyKeyReused, payment.CodeDBUnavailable,
		}),
		"syncPayments": slices.Concat(key, body, []payment.Code{payment.CodeDBUnavailable}),
		"receiveWebhook": slices.Concat(body, []payment.Code{
			payment.CodeRateLimited, payment.CodeInternal, payment.CodePGUnavailable, payment.CodeDBUnavailable,
		}),
		"listIncidents": slices.Concat(key, []payment.Code{payment.CodeInvalidRequest, payment.CodeDBUnavailable}),
		"resolveIncident": slices.Concat(key, body, []payment.Code{
			payment.CodeNotFound, payment.CodeInProgress, payment.CodeCancelInProgress, payment.CodeOrderConflict, payment.CodeDBUnavailable,
		}),
		"readSpec": {payment.CodeInternal},
	}
	got := map[string][]payment.Code{}
	for _, item := range s.doc.Paths.Map() {
		for _, op := range item.Operations() {
			for status, response := range op.Responses.Map() {
				for _, code := range codesOf(response) {
					got[op.OperationID] = append(got[op.OperationID], code)
					if strconv.Itoa(web.StatusOf(code)) != status {
						t.Errorf("%s lists %s under %s", op.OperationID, code, status)
					}
				}
			}
		}
	}
	for id := range want {
		slices.Sort(want[id])
		slices.Sort(got[id])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("codes by operation (-want +got):\n%s", diff)
	}
}

// codesOf reads the enum that narrows Problem.code in one response.
func codesOf(response *openapi3.ResponseRef) (codes []payment.Code) {
	media := response.Value.Content["application/problem+json"]
	if media == nil {
		return nil
	}
	for _, part := range media.Schema.Value.AllOf {
		if code := part.Value.Properties["code"]; part.Ref == "" && code != nil {
			for _, value := range code.Value.Enum {
				codes = append(codes, payment.Code(fmt.Sprint(value)))
			}
		}
	}
	return codes
}

func TestSpecEnums(t *testing.T) {
	t.Parallel()
	schemas := loadSpec(t).doc.Components.Schemas
	enum := func(values []any) (texts []string) {
		for _, v := range values {
			texts = append(texts, fmt.Sprint(v))
		}
		return texts
	}
	text := func(values any) []string { return strings.Fields(strings.Trim(fmt.Sprint(values), "[]")) }
	paymentSchema := schemas["Payment"].Value
	tests := []struct {
		name      string
		want, got []string
	}{
		{name: "codes", want: text(payment.Codes()), got: enum(schemas["Problem"].Value.Properties["code"].Value.Enum)},
		{name: "statuses", want: text(payment.Statuses()), got: enum(schemas["Status"].Value.Enum)},
		{name: "actors", want: text(payment.Actors()),
			got: enum(paymentSchema.Properties["events"].Value.Items.Value.Properties["actor"].Value.Enum)},
		{name: "incident kinds", want: text(payment.IncidentKinds()), got: enum(schemas["IncidentKind"].Value.Enum)},
		{name: "incident actions", want: append(text(payment.IncidentActions()), "<nil>"), got: enum(schemas["Incident"].Value.Properties["action"].Value.Enum)},
		{name: "members of a confirm", want: slices.Sorted(slices.Values(orderMembers())), got: sortedKeys(schemas["ConfirmRequest"].Value)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, test.got); diff != "" {
				t.Errorf("(-code +openapi.yaml):\n%s", diff)
			}
		})
	}
}

func sortedKeys(s *openapi3.Schema) []string {
	var names []string
	for name := range s.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func TestSpecIsServed(t *testing.T) {
	t.Parallel()
	w := setup(t).send(t, call{method: http.MethodGet, path: "/openapi.yaml"})
	if !bytes.Equal(w.Body.Bytes(), openapi) || w.Header().Get("Content-Type") != "application/yaml" {
		t.Errorf("%d %s", w.Code, w.Header())
	}
	if !strings.HasPrefix(loadSpec(t).doc.Info.Description, "**The amount must come from the shop's own order, never from the success URL.**") {
		t.Error("openapi.yaml does not say first where the amount comes from")
	}
}
