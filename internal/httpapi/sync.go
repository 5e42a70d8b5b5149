package httpapi

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"paymentd/internal/payment"
	"paymentd/internal/web"
)

const (
	maxSyncOrders = 100
	maxSyncLimit  = 1000
)

// syncReport is a payment.SyncReport as JSON.
type syncReport struct {
	Checked   int          `json:"checked"`
	Paid      int          `json:"paid"`
	Failed    int          `json:"failed"`
	Waiting   int          `json:"waiting"`
	Canceled  int          `json:"canceled"`
	Incidents int          `json:"incidents"`
	Errors    int          `json:"errors"`
	Results   []syncResult `json:"results"`
}

type syncResult struct {
	OrderID string         `json:"orderId"`
	Before  payment.Status `json:"before"`
	After   payment.Status `json:"after"`
	Reason  string         `json:"reason"`
}

// sync is POST /payments/sync.
func (a *api) sync(w http.ResponseWriter, r *http.Request) error {
	object, err := web.ReadObject(w, r, "orderIds", "olderThan", "limit", "dryRun")
	if err != nil {
		return err
	}
	request, err := parseSync(object)
	if err != nil {
		return err
	}
	web.EventOf(r.Context()).Action = fmt.Sprintf("sync orders=%d olderThan=%s limit=%d dryRun=%t",
		len(request.OrderIDs), request.OlderThan, request.Limit, request.DryRun)
	report, err := a.Sync.Sync(r.Context(), request)
	if err != nil && report.Checked == 0 {
		return readFailed(err)
	}
	if err != nil {
		// What was done must be told, also if the rest could not be read.
		web.EventOf(r.Context()).Note(fmt.Errorf("sync payments: %w", err))
		report.Errors++
	}
	return web.WriteJSON(w, http.StatusOK, viewReport(report))
}

func parseSync(o *web.Object) (payment.SyncRequest, error) {
	var request payment.SyncRequest
	if ids, ok := o.Texts("orderIds", maxSyncOrders); ok {
		request.OrderIDs = ids
		if len(ids) == 0 {
			o.Refuse("orderIds", "must not be empty")
		}
		for _, id := range ids {
			if why := checkOrderID(id); why != "" {
				o.Refuse("orderIds", "every item "+why)
			}
		}
	}
	if text, ok := o.Text("olderThan"); ok {
		age, err := time.ParseDuration(text)
		if err != nil || age < 0 {
			o.Refuse("olderThan", "must be a duration such as 90s or 10m")
		}
		request.OlderThan = age
	}
	if text, ok := o.Number("limit"); ok {
		limit, err := strconv.Atoi(text)
		if err != nil || limit < 1 || limit > maxSyncLimit {
			o.Refuse("limit", "must be an integer from 1 to 1000")
		}
		request.Limit = limit
	}
	request.DryRun = o.Flag("dryRun")
	if err := o.Err(); err != nil {
		return payment.SyncRequest{}, err
	}
	return request, nil
}

func viewReport(r payment.SyncReport) syncReport {
	view := syncReport{
		Checked: r.Checked, Paid: r.Paid, Failed: r.Failed, Waiting: r.Waiting, Canceled: r.Canceled,
		Incidents: r.Incidents, Errors: r.Errors, Results: make([]syncResult, len(r.Results)),
	}
	for i, one := range r.Results {
		view.Results[i] = syncResult(one)
	}
	return view
}
