// Package deploy holds what runs beside paymentd: alert rules, dashboards, container files. It has no code; its tests
// keep the files true.
package deploy
