package tosssim

import (
	"encoding/json"
	"strconv"
	"time"
)

const (
	apiVersion = "2022-11-16"
	merchantID = "tosssim"
	kst        = 9 * time.Hour
)

// pen writes JSON by appending: a Payment has 40 fields and is written on every confirm.
type pen struct {
	b       []byte
	english bool
	digits  int
}

// payment writes p as of v, all fields of API version 2022-11-16 with their nulls.
func (w *pen) payment(p *payment, v view) {
	w.digits = decimals(p.currency)
	balance := p.balance(v.cancels)
	vat := (balance + 5) / 11
	paid := v.status == Done || v.status == PartialCanceled || v.status == Canceled && p.approval != 0
	asked := paid || v.status == WaitingForDeposit || v.status == Canceled

	w.raw(`{"version":"`+apiVersion+`"`).text(`,"paymentKey":`, p.key).text(`,"type":`, "NORMAL").text(`,"orderId":`, p.orderID)
	w.text(`,"orderName":`, "tosssim order").text(`,"mId":`, merchantID).text(`,"currency":`, p.currency)
	w.raw(`,"method":`)
	if v.status == Ready || v.status == Expired {
		w.raw(`null`)
	} else {
		w.string(p.method.label(w.english))
	}
	w.money(`,"totalAmount":`, p.amount).money(`,"balanceAmount":`, balance).text(`,"status":`, string(v.status))
	w.time(`,"requestedAt":`, p.requestedAt).raw(`,"approvedAt":`)
	if paid {
		w.time(``, p.approvedAt)
	} else {
		w.raw(`null`)
	}
	w.raw(`,"useEscrow":`)
	if v.status == Expired {
		w.raw(`null`)
	} else {
		w.raw(`false`)
	}
	w.raw(`,"lastTransactionKey":`)
	w.transactionKey(p, v, paid)
	w.money(`,"suppliedAmount":`, balance-vat).money(`,"vat":`, vat)
	w.raw(`,"cultureExpense":false,"taxFreeAmount":0,"taxExemptionAmount":0,"isPartialCancelable":`).bool(!p.rigid)
	w.raw(`,"transactionKey":null,"cancels":`)
	w.refunds(p, v.cancels)
	w.method(p, v, asked)
	w.raw(`,"secret":`)
	if asked {
		w.string(p.secret())
	} else {
		w.raw(`null`)
	}
	w.raw(`,"giftCertificate":null,"foreignEasyPay":null,"easyPayAmount":null,"easyPayDiscountAmount":null,"cashReceipt":null,"cashReceipts":null,"discount":null,"metadata":null,"receipt":`)
	if paid {
		w.text(`{"url":`, "https://dashboard.tosspayments.invalid/receipt?paymentKey="+p.key).raw(`}`)
	} else {
		w.raw(`null`)
	}
	w.text(`,"checkout":{"url":`, "https://api.tosspayments.invalid/v1/payments/"+p.key+"/checkout").raw(`},"country":"KR","failure":`)
	if f := p.failure; f != nil && (v.status == Aborted || v.status == Expired) {
		w.text(`{"code":`, f.Code).text(`,"message":`, f.message(w.english)).raw(`}}`)
	} else {
		w.raw(`null}`)
	}
}

func (w *pen) transactionKey(p *payment, v view, paid bool) {
	i := p.approval
	if v.cancels > 0 {
		i = p.cancels[v.cancels-1].tx
	}
	if i == 0 || !paid && v.cancels == 0 {
		w.raw(`null`)
		return
	}
	w.b = append(i.appendKey(append(w.b, '"')), '"')
}

func (w *pen) refunds(p *payment, n int) {
	if n == 0 {
		w.raw(`null`)
		return
	}
	for i, c := range p.cancels[:n] {
		w.raw([...]string{"[", ","}[min(i, 1)])
		w.text(`{"transactionKey":`, c.tx.key()).text(`,"cancelReason":`, c.reason)
		w.raw(`,"taxExemptionAmount":0,"taxFreeAmount":0`).time(`,"canceledAt":`, c.at)
		w.raw(`,"cardDiscountAmount":0,"transferDiscountAmount":0,"easyPayDiscountAmount":0,"receiptKey":null`)
		w.money(`,"cancelAmount":`, c.amount).money(`,"refundableAmount":`, p.balance(i+1))
		w.raw(`,"cancelStatus":"DONE","cancelRequestId":null}`)
	}
	w.raw(`]`)
}

// method writes the five objects of which at most one is not null.
func (w *pen) method(p *payment, v view, shown bool) {
	m := p.method
	if !shown {
		m = ""
	}
	w.raw(`,"card":`).either(m == Card, func() {
		state := "READY"
		if p.balance(v.cancels) == 0 {
			state = "CANCELED"
		}
		w.money(`{"amount":`, p.amount).raw(`,"issuerCode":"3K","acquirerCode":"31","number":"12345678****123*","installmentPlanMonths":0,"approveNo":"00000000"`)
		w.raw(`,"useCardPoint":false,"cardType":"신용","ownerType":"개인"`).text(`,"acquireStatus":`, state)
		w.raw(`,"isInterestFree":false,"interestPayer":null}`)
	})
	w.raw(`,"virtualAccount":`).either(m == VirtualAccount, func() {
		settlement, refund := "INCOMPLETED", "NONE"
		if p.approvals > 0 && v.status != WaitingForDeposit {
			settlement = "COMPLETED"
		}
		if v.cancels > 0 && p.returned > 0 {
			refund = "COMPLETED"
		}
		w.text(`{"accountType":`, "일반").text(`,"accountNumber":`, p.account()).raw(`,"bankCode":"20","customerName":"tosssim","depositorName":null`)
		w.time(`,"dueDate":`, p.requestedAt+int64(depositWithin)).text(`,"refundStatus":`, refund)
		w.raw(`,"expired":false`).text(`,"settlementStatus":`, settlement).raw(`,"refundReceiveAccount":null}`)
	})
	w.raw(`,"transfer":`).either(m == Transfer, func() { w.raw(`{"bankCode":"20","settlementStatus":"INCOMPLETED"}`) })
	w.raw(`,"mobilePhone":`).either(m == MobilePhone, func() {
		w.raw(`{"customerMobilePhone":"01000000000","settlementStatus":"INCOMPLETED","receiptUrl":"https://dashboard.tosspayments.invalid/receipt"}`)
	})
	w.raw(`,"easyPay":`).either(m == EasyPay, func() {
		w.raw(`{"provider":"토스페이"`).money(`,"amount":`, p.amount).raw(`,"discountAmount":0}`)
	})
}

func (w *pen) transaction(i txIndex, t transaction) {
	w.digits = decimals(t.p.currency)
	w.text(`{"mId":`, merchantID).text(`,"transactionKey":`, i.key()).text(`,"paymentKey":`, t.p.key).text(`,"orderId":`, t.p.orderID)
	w.text(`,"method":`, t.p.method.label(w.english)).raw(`,"customerKey":null,"useEscrow":false`)
	w.text(`,"receiptUrl":`, "https://dashboard.tosspayments.invalid/receipt?paymentKey="+t.p.key).text(`,"status":`, string(t.status))
	w.time(`,"transactionAt":`, t.at).text(`,"currency":`, t.p.currency).money(`,"amount":`, t.amount).raw(`}`)
}

func (w *pen) failure(e *apiError) {
	w.text(`{"code":`, e.Code).text(`,"message":`, e.message(w.english)).raw(`}`)
}

func (w *pen) raw(s string) *pen {
	w.b = append(w.b, s...)
	return w
}

func (w *pen) bool(v bool) { w.b = strconv.AppendBool(w.b, v) }

func (w *pen) either(shown bool, object func()) {
	if shown {
		object()
	} else {
		w.raw(`null`)
	}
}

func (w *pen) text(name, s string) *pen {
	w.raw(name).string(s)
	return w
}

func (w *pen) string(s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c > '~' {
			quoted, _ := json.Marshal(s) // a string always marshals
			w.b = append(w.b, quoted...)
			return
		}
	}
	w.b = append(append(append(w.b, '"'), s...), '"')
}

func (w *pen) money(name string, minor int64) *pen {
	w.b = appendMinor(append(w.b, name...), minor, w.digits)
	return w
}

// time writes Korean time with its offset, as Toss does.
func (w *pen) time(name string, ns int64) *pen {
	w.b = append(append(w.b, name...), '"')
	w.b = time.Unix(0, ns).UTC().Add(kst).AppendFormat(w.b, "2006-01-02T15:04:05")
	w.b = append(w.b, `+09:00"`...)
	return w
}

func (p *payment) secret() string {
	return "ps_" + string(appendHex(nil, hash(p.key)))
}

// account begins with X, as the test accounts of Toss do.
func (p *payment) account() string {
	return "X" + strconv.FormatUint(hash(p.key)%1e13+1e13, 10)
}

func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h)
}

func (m Method) label(english bool) string {
	var ko, en string
	switch m {
	case Card:
		ko, en = "카드", "Card"
	case VirtualAccount:
		ko, en = "가상계좌", "Virtual account"
	case EasyPay:
		ko, en = "간편결제", "Easy payment"
	case Transfer:
		ko, en = "계좌이체", "Bank transfer"
	case MobilePhone:
		ko, en = "휴대폰", "Mobile phone"
	}
	if english {
		return en
	}
	return ko
}
