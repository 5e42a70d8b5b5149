// @ts-check
// The control port of tosssim (internal/tosssim/README.md).
import http from 'k6/http';

import { controlURL } from './settings.js';

/** @typedef {{paymentKey: string, orderId: string, amount: number, status: string, approvals: number, cancels: number, total: number, balance: number}} Entry */
/** @typedef {{approvals: number, cancels: number, approvedSum: number, canceledSum: number, payments: Entry[]}} Ledger */
/** @typedef {{calls: number, running: number, maxRunning: number, unanswered: number, ok: number, errors: number}} Count */
/** @typedef {{op: string, paymentKey?: string, latency?: string | {min: string, max: string}, hang?: boolean, work?: string, drop?: string, status?: number, rate?: number, next?: number}} Fault */

const none = { calls: 0, running: 0, maxRunning: 0, unanswered: 0, ok: 0, errors: 0 };

/**
 * One call of the control port; a refusal ends the run, because without it nothing is tested.
 *
 * @param {string} method
 * @param {string} path
 * @param {unknown} [body]
 * @returns {any}
 */
function control(method, path, body) {
  const res = http.request(method, `${controlURL}/control/${path}`, body === undefined ? null : JSON.stringify(body), {
    headers: { 'Content-Type': 'application/json' },
    tags: { name: 'control' },
    responseCallback: http.expectedStatuses(200),
  });
  if (res.status !== 200) {
    throw new Error(`simulator: ${method} ${controlURL}/control/${path}: ${res.status} ${res.error || res.body}`);
  }
  return res.json();
}

/** Forgets all payments and faults. */
export function reset() {
  control('POST', 'reset');
}

/** @param {Fault[]} list what is wrong from now on; an empty list: nothing */
export function faults(list) {
  control('POST', 'faults', list);
}

/** @param {boolean} up false: dials are refused */
export function listen(up) {
  control('POST', 'listen', { up });
}

/**
 * All payments, or those of one paymentKey or one order.
 *
 * @param {{paymentKey?: string, orderId?: string}} [of]
 * @returns {Ledger}
 */
export function ledger(of = {}) {
  const query = Object.entries(of).map(([k, v]) => `${k}=${encodeURIComponent(v)}`);
  return control('GET', `ledger?${query.join('&')}`);
}

/**
 * Counters of one operation since the reset.
 *
 * @param {'confirm' | 'lookup' | 'cancel'} op
 * @returns {Count}
 */
export function count(op) {
  return control('GET', `calls?op=${op}&limit=1`).counters.ops[op] ?? none;
}

/**
 * How many calls of one payment came.
 *
 * @param {'confirm' | 'lookup' | 'cancel'} op
 * @param {string} paymentKey
 * @returns {number}
 */
export function callsOf(op, paymentKey) {
  return control('GET', `calls?op=${op}&paymentKey=${encodeURIComponent(paymentKey)}&limit=0`).calls.length;
}

/**
 * When the confirms came, in milliseconds, the earliest first.
 *
 * @returns {number[]}
 */
export function confirmTimes() {
  /** @type {{started: string}[]} */
  const calls = control('GET', 'calls?op=confirm&limit=0').calls;
  return calls.map((c) => Date.parse(c.started)).sort((a, b) => a - b);
}
