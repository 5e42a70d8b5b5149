// What k6 has and @types/k6 leaves to the DOM library, whose other names k6 does not have.
declare const console: Record<'log' | 'info' | 'warn' | 'error', (...what: unknown[]) => void>;
